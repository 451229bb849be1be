// One item in a dialog: its text, its keywords, and the queries that reach it.

import { count, extra, fill, find, foreign, frequency, make, many } from "./dom.js";

/**
 * @param item what the expander says of the item
 * @param words the words of the search that is shown
 * @param events add: a keyword for the search; search: a query instead of it
 */
export function showItem(item, words, events) {
  const dialog = find("item");
  const close = make("button", { type: "button", className: "close", "aria-label": "Close" }, "×");
  close.addEventListener("click", () => dialog.close());
  const leave = (then) => () => { dialog.close(); then(); };
  fill(dialog,
    make("div", { className: "head" }, make("h2", { id: "item-title" }, foreign(item.title || item.id)), close),
    make("p", { className: "quiet" }, make("code", {}, foreign(item.id)), item.held ? "" : " is not in this snapshot."),
    item.text ? make("p", { className: "text", tabIndex: 0, role: "region", "aria-label": "Text" }, foreign(item.text)) : null,
    extra(item.fields),
    make("h3", {}, many(item.keywords.length, "keyword")),
    item.keywords.length ? keywords(item, words, leave, events) : make("p", { className: "quiet" }, "It has none."),
    reached(item.reached, leave, events));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}

function keywords(item, words, leave, events) {
  const inSearch = new Set(words.list.filter((word) => word.on).map((word) => word.text));
  return make("ul", { className: "chips" }, item.keywords.map(({ text, df, own }) => {
    const has = inSearch.has(text);
    const button = make("button", {
      type: "button",
      className: has ? `chip tone${words.tone(text)}` : "chip quietly",
      disabled: has,
      title: has ? "The search asks for it." : "Click to add it to the search.",
    }, has ? make("span", { className: "dot", "aria-hidden": "true" }) : null, foreign(text), own ? make("small", {}, " its title") : null,
    frequency(df));
    button.addEventListener("click", leave(() => events.add(text)));
    return make("li", {}, button);
  }));
}

function reached(found, leave, events) {
  if (found === null) return make("p", { className: "quiet" }, "This pair has no query snapshot, so nobody knows which queries reach it.");
  const rows = found.queries.map((query) => {
    const button = make("button", { type: "button", className: "link" }, foreign(query.text));
    button.addEventListener("click", leave(() => events.search(query.text)));
    return make("li", {}, make("div", { className: "line" }, button, query.relevant ? make("span", { className: "tag good" }, "relevant") : null),
      make("p", { className: "quiet via" }, "by ", query.via.flatMap((word, at) => [at ? ", " : "", foreign(word)])));
  });
  const more = found.total - rows.length;
  return make("section", {},
    make("h3", {}, found.total ? `${many(found.total, "query reaches", "queries reach")} it` : "No query of the snapshot reaches it"),
    make("ul", { className: "plain queries" }, rows),
    more > 0 ? make("p", { className: "quiet" }, `and ${count(more)} more`) : null);
}
