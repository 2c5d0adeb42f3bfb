// Reads XML that may have mistakes: its tags with their places, and its elements as a tree.

const MARKUP = /<!--[^]*?(?:-->|$)|<!\[CDATA\[[^]*?(?:\]\]>|$)|<[!?][^>]*>?|<(\/?)([^\s<>/"'=&]*)((?:[^<>"']|"[^"<]*"?|'[^'<]*'?)*)(>?)|&#?\w+;/g;
const ATTRIBUTE = /([^\s=/"'<&]+)(?:\s*=\s*(?:"([^"]*)"?|'([^']*)'?))?/dg;

/**
 * Yield comments, references to characters, and tags: {kind, from, to}. A tag also has `name`, `isEnd`, `isEmpty`, `isWhole`
 * (its ">" is there), and `attributes`: the places of their names and values.
 */
export function* markup(text) {
  for (const found of text.matchAll(MARKUP)) {
    const [whole, slash, name, rest, end] = found;
    const place = { from: found.index, to: found.index + whole.length };
    if (name === undefined) {
      yield { kind: whole[0] === "&" ? "character" : "comment", ...place };
      continue;
    }
    const inside = place.from + 1 + slash.length + name.length;
    const isEmpty = rest.endsWith("/") || !end; // a tag that is still written has nothing inside
    yield { kind: "tag", ...place, name, isEnd: Boolean(slash), isEmpty, isWhole: Boolean(end), attributes: attributes(rest, inside) };
  }
}

function attributes(rest, start) {
  return [...rest.matchAll(ATTRIBUTE)].map(({ 0: whole, 1: name, indices }) => {
    const [from, to] = indices[2] ?? indices[3] ?? [];
    const value = from === undefined ? null : { from: start + from, to: start + to };
    return { name, from: start + indices[0][0], to: start + indices[0][1], value, isWhole: /=\s*("[^"]*"|'[^']*')$/.test(whole) };
  });
}

/**
 * Return the elements of a text below a root, and the innermost one that is open at its end.
 *
 * An element has `name`, `from`, `to`, `parent`, `inside` (its children), `open` and `close` (its tags; `close` may be null), and
 * `values`: the places of its attributes' values.
 */
export function parse(text) {
  const root = { name: "", from: 0, to: text.length, parent: null, inside: [], open: null, close: null, values: new Map() };
  let at = root;
  for (const tag of markup(text)) {
    if (tag.kind !== "tag" || !tag.name) continue;
    if (tag.isEnd) {
      let ended = at;
      while (ended.parent && ended.name !== tag.name) ended = ended.parent;
      if (!ended.parent) continue;
      for (; at !== ended; at = at.parent) at.to = tag.from; // these have no end tag
      at.close = tag;
      at.to = tag.to;
      at = at.parent;
    } else {
      const whole = tag.attributes.filter((each) => each.value && each.isWhole);
      const values = new Map(whole.map((each) => [each.name, { ...each.value, attribute: { from: each.from, to: each.to } }]));
      const made = { name: tag.name, from: tag.from, to: tag.isEmpty ? tag.to : text.length, parent: at, inside: [], open: tag, close: null, values };
      at.inside.push(made);
      if (!tag.isEmpty) at = made;
    }
  }
  return { root, open: at };
}

/** Yield all elements below one, in the order of the text. */
export function* elements(root) {
  for (const each of root.inside) {
    yield each;
    yield* elements(each);
  }
}
