// One item in a dialog: its text, its keywords, and the queries that reach it.

import { button, count, extra, find, foreign, frequency, make, many } from "./dom.js";
import { openDialog, quiet, tag } from "./dom.js";

/**
 * @param item what the expander says of the item
 * @param words the words of the search that is shown
 * @param events add: a keyword for the search; search: a query instead of it
 */
export function showItem(item, words, events) {
  const dialog = find("item");
  const leave = (then) => () => {
    dialog.close();
    then();
  };
  const text = { className: "text", tabIndex: 0, role: "region", "aria-label": "Text" };
  openDialog(
    dialog,
    foreign(item.title || item.id),
    quiet(make("code", {}, foreign(item.id)), item.held ? "" : " is not in this snapshot."),
    item.text ? make("p", text, foreign(item.text)) : null,
    extra(item.fields),
    make("h3", {}, many(item.keywords.length, "keyword")),
    item.keywords.length ? keywords(item, words, leave, events) : quiet("It has none."),
    reached(item.reached, leave, events),
  );
}

function keywords(item, words, leave, events) {
  const inSearch = new Set(words.list.filter((word) => word.on).map((word) => word.text));
  const chips = item.keywords.map(({ text, df, own }) => {
    const has = inSearch.has(text);
    const given = {
      className: has ? `chip tone${words.tone(text)}` : "chip quietly",
      disabled: has,
      title: has ? "The search asks for it." : "Click to add it to the search.",
      onclick: leave(() => events.add(text)),
    };
    const dot = has ? make("span", { className: "dot", "aria-hidden": "true" }) : null;
    const title = own ? make("small", {}, " its title") : null;
    return make("li", {}, button(given, dot, foreign(text), title, frequency(df)));
  });
  return make("ul", { className: "chips" }, chips);
}

function reached(found, leave, events) {
  if (found === null)
    return quiet("This pair has no query snapshot, so nobody knows which queries reach it.");
  const rows = found.queries.map((query) => {
    const search = leave(() => events.search(query.text));
    const link = button({ className: "link", onclick: search }, foreign(query.text));
    const via = query.via.flatMap((word, at) => [at ? ", " : "", foreign(word)]);
    return make(
      "li",
      {},
      make("div", { className: "line" }, link, query.relevant ? tag("relevant", "good") : null),
      make("p", { className: "quiet via" }, "by ", via),
    );
  });
  const more = found.total - rows.length;
  const title = found.total
    ? `${many(found.total, "query reaches", "queries reach")} it`
    : "No query of the snapshot reaches it";
  return make(
    "section",
    {},
    make("h3", {}, title),
    make("ul", { className: "plain queries" }, rows),
    more > 0 ? quiet(`and ${count(more)} more`) : null,
  );
}
