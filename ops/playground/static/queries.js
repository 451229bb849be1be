// The labelled queries in a dialog: sorted, each with how the pairs do by the keywords of their
// query snapshots. And a merchant's rules, in the same dialog.

import { ask, Refused } from "./asking.js";
import { button, count, decimals, fill, find, foreign, make, many } from "./dom.js";
import { openDialog, quiet } from "./dom.js";

const SORTS = { worst: "F1, worst first", change: "where A and B differ most" };
let under = new AbortController();

/**
 * Open the dialog for the pairs of the page; `events.search` is called with a query that is taken.
 */
export function openQueries(state, events) {
  const ways = Object.entries(SORTS).filter(([way]) => way !== "change" || state.pairs.length > 1);
  const sort = make(
    "select",
    { id: "sort", onchange: () => load(state, events, sort.value) },
    ways.map(([value, label]) => make("option", { value }, label)),
  );
  openDialog(
    find("queries"),
    "Labelled queries",
    quiet(
      "By the keywords of each pair's query snapshot; a query that it does not hold is searched " +
        "by itself. Only the test queries, where there are any.",
    ),
    make("p", {}, make("label", { htmlFor: "sort" }, `Sort ${"AB"[state.shown]} by`), sort),
    make("p", { id: "queries-said", className: "quiet", role: "status" }),
    make("table", { id: "queries-found", className: "queries-found" }),
  );
  sort.focus();
  load(state, events, sort.value);
}

/** Open the dialog with a merchant's rules; their queries and items lead to them. */
export function openRules(rules, events) {
  under.abort();
  const link = (text, onclick) =>
    text ? button({ className: "link", onclick }, foreign(text)) : "";
  const rows = rules.map(([kind, query, item, keyword]) =>
    row(kind, [
      link(query, () => taken(query, events)),
      link(item, () => events.open(item)),
      foreign(keyword),
    ]),
  );
  openDialog(
    find("queries"),
    "Merchants' rules",
    quiet("As the pair that serves was made with (publish.rules); without one, the newest pair."),
    make("table", { id: "queries-found", className: "queries-found rules" }),
  );
  table(["Rule", "Query", "Item", "Keyword"], rows);
}

async function load(state, events, sort) {
  under.abort();
  under = new AbortController();
  const pairs = state.pairs.map(({ item, query }) => ({ item, query }));
  try {
    if (!find("queries-found").children.length)
      find("queries-said").textContent = "Searching all of them …";
    draw(
      await ask("queries", { pairs, shown: state.shown, sort }, under.signal),
      pairs.length,
      events,
    );
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Refused)) throw error;
    fill(find("queries-said"), foreign(error.message));
  }
}

function draw(found, pairs, events) {
  const letters = ["A", "B"].slice(0, pairs);
  const means = found.mean
    .map((mean, at) => (mean === null ? null : `${letters[at]} ${decimals(mean, 3)}`))
    .filter(Boolean);
  find("queries-said").textContent = [
    many(found.total, "query", "queries"),
    means.length ? `mean F1: ${means.join(", ")}` : "",
  ]
    .filter(Boolean)
    .join(" · ");
  const head = ["Query", "relevant", ...letters.map((letter) => `F1 ${letter}`)];
  const rows = found.queries.map((query) => {
    const onclick = () => taken(query.text, events);
    const figures = [count(query.relevant), ...query.f1.map((value) => decimals(value, 2))];
    return row(button({ className: "link", onclick }, foreign(query.text)), figures);
  });
  table(head, rows);
}

function table(head, rows) {
  fill(
    find("queries-found"),
    make("thead", {}, make("tr", {}, head.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, rows),
  );
}

function taken(query, events) {
  find("queries").close();
  events.search(query);
}

function row(name, cells) {
  const columns = cells.map((cell) => make("td", {}, cell));
  return make("tr", {}, make("th", { scope: "row" }, name), columns);
}
