// A list of completions at the cursor of an editor.
import { element } from "./dom.js";

const MAX_SHOWN = 200;

/** Return the list of an editor, whose text area keeps the focus. `take` is called with the place and the option that is taken. */
export function completions(area, take) {
  const list = element("ul", { className: "completions", id: `${area.id}-completions`, hidden: true });
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Completions");
  area.setAttribute("aria-autocomplete", "list");
  area.setAttribute("aria-controls", list.id);
  document.body.append(list);
  let sources = [];
  let shown = []; // [place, option]
  let chosen = 0;
  let asked = 0;

  function close() {
    asked++;
    shown = [];
    list.hidden = true;
    area.removeAttribute("aria-activedescendant");
  }

  function choose(index) {
    chosen = (index + shown.length) % shown.length;
    [...list.children].forEach((each, number) => each.setAttribute("aria-selected", number === chosen));
    list.children[chosen].scrollIntoView({ block: "nearest" });
    area.setAttribute("aria-activedescendant", list.children[chosen].id);
  }

  function accept() {
    const [place, option] = shown[chosen];
    close();
    take(place, option);
  }

  async function open(explicit, rectangleOfCursor) {
    const number = ++asked;
    const context = { text: area.value, at: area.selectionStart, explicit, isOver: () => number !== asked };
    const isAsked = explicit || /<[^<>]*[^\s<>]$|<$/.test(context.text.slice(0, context.at));
    const found = isAsked ? await Promise.all(sources.map((each) => each(context))) : [];
    if (number !== asked || document.activeElement !== area) return;
    const begins = (label, prefix) => label.toLowerCase().startsWith(prefix.toLowerCase()) && (explicit || label !== prefix);
    shown = found.filter(Boolean)
      .flatMap((place) => place.options.filter(({ label }) => begins(label, place.prefix)).map((option) => [place, option]))
      .slice(0, MAX_SHOWN);
    if (!shown.length) return close();
    list.replaceChildren(...shown.map(([, { label, detail }], index) => {
      const row = element("li", { id: `${list.id}-${index}` }, element("b", {}, label), element("span", {}, detail ?? ""));
      row.setAttribute("role", "option");
      row.onmousedown = (event) => {
        event.preventDefault(); // the editor keeps the focus
        chosen = index;
        accept();
      };
      return row;
    }));
    list.hidden = false;
    const { left, top, bottom } = rectangleOfCursor();
    const isBelow = bottom + list.offsetHeight <= innerHeight || top < list.offsetHeight;
    list.style.left = `${scrollX + Math.max(8, Math.min(left, document.documentElement.clientWidth - list.offsetWidth - 8))}px`;
    list.style.top = `${scrollY + (isBelow ? bottom : top - list.offsetHeight)}px`;
    choose(0);
  }

  /** Use a key, and return whether it was one of the list. */
  function press({ key, ctrlKey, metaKey, altKey }) {
    if (list.hidden || ctrlKey || metaKey || altKey) return false;
    if (key === "ArrowDown") choose(chosen + 1);
    else if (key === "ArrowUp") choose(chosen - 1);
    else if (key === "Enter") accept();
    else if (key === "Escape") close();
    else return false;
    return true;
  }

  return { open, close, press, completeWith: (...found) => { sources = found; } };
}
