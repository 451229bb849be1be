// Elements made of plain text: nothing here, or anywhere in the page, turns a text into markup.

export const find = (id) => document.getElementById(id);

/**
 * An element with properties (or attributes, where there is no such property) and children; texts
 * become text nodes.
 */
export function make(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || value === null) continue;
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...present(children));
  return element;
}

const present = (children) =>
  children.flat(Infinity).filter((child) => child !== null && child !== undefined);

/** A button, with `onclick` among its properties. */
export const button = (given, ...children) =>
  make("button", { type: "button", ...given }, ...children);

/** Open a dialog with a title and what is in it. */
export function openDialog(dialog, title, ...children) {
  const onclick = () => dialog.close();
  const close = button({ className: "close", "aria-label": "Close", onclick }, "×");
  const heading = make("h2", { id: `${dialog.id}-title` }, title);
  fill(dialog, make("div", { className: "head" }, heading, close), children);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

/** A line of quiet text. */
export const quiet = (...children) => make("p", { className: "quiet" }, ...children);

export const tag = (text, kind = "") => make("span", { className: `tag ${kind}` }, text);

/** A text of somebody else's, kept apart from the direction of the text around it. */
export const foreign = (text) => make("bdi", {}, text);

/** An item's fields on a line; null where it has none. */
export function extra(fields = {}) {
  const parts = Object.entries(fields).map(([name, value]) => [
    foreign(name),
    " ",
    foreign(Array.isArray(value) ? value.join(", ") : String(value)),
  ]);
  return parts.length
    ? make(
        "p",
        { className: "quiet extra" },
        parts.flatMap((part, at) => (at ? [" · ", ...part] : part)),
      )
    : null;
}

export function fill(element, ...children) {
  element.replaceChildren(...present(children));
}

export function show(element, visible) {
  element.hidden = !visible;
}

/**
 * Draw; where that takes away what has the focus, it goes to what `place` finds. Focus that is
 * elsewhere stays there.
 */
export function keepFocus(draw, place) {
  const held = document.activeElement;
  draw();
  if (!held.checkVisibility()) place()?.focus({ preventScroll: true });
}

export const count = (number) => number.toLocaleString("en");
export const many = (number, one, more = `${one}s`) =>
  `${count(number)} ${number === 1 ? one : more}`;

/** A keyword's number of items: bare for the eye, in words for the ear. */
export const frequency = (df) =>
  make(
    "span",
    { className: "df" },
    make("span", { className: "unseen" }, " in "),
    count(df),
    make("span", { className: "unseen" }, df === 1 ? " item" : " items"),
  );
export const decimals = (number, places) => number.toFixed(places);
