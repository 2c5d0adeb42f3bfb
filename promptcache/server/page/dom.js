// Elements of the page. Texts enter the document as text, never as markup.

export const $ = (id) => document.getElementById(id);

/** Return an element with properties and children; strings become text. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [each, value] of Object.entries(properties)) made[each] = value;
  made.append(...children);
  return made;
}

/** Show a message of trouble, or none, with elements behind it. */
export function say(message, ...more) {
  $("trouble").replaceChildren(message ?? "", ...more);
  $("trouble").hidden = !message;
}
