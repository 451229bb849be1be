// All labelled queries in a dialog: searched, sorted, each with how the pairs do by the keywords of
// their query snapshots.

import { ask, Refused } from "./asking.js";
import { button, count, decimals, fill, find, foreign, make, many } from "./dom.js";
import { openDialog, quiet, show } from "./dom.js";

const STEP = 50;
const PAUSE = 150;
const SORTS = {
  worst: "F1, worst first",
  best: "F1, best first",
  change: "where A and B differ most",
  text: "text",
};
const filter = { match: "", sort: "worst", size: STEP };
let under = new AbortController();
let waiting = 0;

/**
 * Open the dialog for the pairs of the page; `events.search` is called with a query that is taken.
 */
export function openQueries(state, events) {
  const look = (changed) => {
    Object.assign(filter, { size: STEP }, changed);
    load(state, events);
  };
  const match = make("input", {
    type: "search",
    id: "match",
    value: filter.match,
    maxLength: 1024,
    autocomplete: "off",
    spellcheck: false,
    oninput: () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => look({ match: match.value }), PAUSE);
    },
  });
  const ways = Object.entries(SORTS).filter(([way]) => way !== "change" || state.pairs.length > 1);
  const sort = make(
    "select",
    { id: "sort", onchange: () => look({ sort: sort.value }) },
    ways.map(([value, label]) => make("option", { value, selected: value === filter.sort }, label)),
  );
  const further = () => look({ size: Math.min(1000, filter.size + STEP) });
  openDialog(
    find("queries"),
    "Labelled queries",
    quiet(
      "By the keywords of each pair's query snapshot; a query that it does not hold is searched " +
        "by itself. Queries that the keywords were learned from are marked: they flatter.",
    ),
    make(
      "div",
      { className: "choose" },
      make("p", {}, make("label", { htmlFor: "match" }, "Search them"), match),
      make("p", {}, make("label", { htmlFor: "sort" }, `Sort ${"AB"[state.shown]} by`), sort),
    ),
    make("p", { id: "queries-said", className: "quiet", role: "status" }),
    make("table", { id: "queries-found", className: "queries-found" }),
    button({ id: "queries-more", className: "wide", hidden: true, onclick: further }),
  );
  match.focus();
  look({});
}

/** Open the same dialog with a merchant's rules; their queries and items lead to them. */
export function openRules(rules, events) {
  const head = ["Rule", "Query", "Item", "Keyword"];
  const link = (text, onclick) =>
    text ? button({ className: "link", onclick }, foreign(text)) : "";
  const rows = rules.map(([kind, query, item, keyword]) => {
    const search = () => {
      find("queries").close();
      events.search(query);
    };
    const cells = [link(query, search), link(item, () => events.open(item)), foreign(keyword)];
    return make(
      "tr",
      {},
      make("th", { scope: "row" }, kind),
      cells.map((cell) => make("td", {}, cell)),
    );
  });
  openDialog(
    find("queries"),
    "Merchants' rules",
    quiet(
      "Of the pair that serves, else of the newest one: the file publish.rules when it was made.",
    ),
    make(
      "table",
      { className: "queries-found rules" },
      make("thead", {}, make("tr", {}, head.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, rows),
    ),
  );
}

async function load(state, events) {
  under.abort();
  under = new AbortController();
  const pairs = state.pairs.map(({ item, query }) => ({ item, query }));
  try {
    if (!find("queries-found").children.length)
      find("queries-said").textContent = "Searching all of them …";
    draw(
      await ask("queries", { pairs, shown: state.shown, ...filter }, under.signal),
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
  const over = found.split === "test" ? "mean F1 of the test queries" : "mean F1 of all";
  find("queries-said").textContent = [
    many(found.total, "query", "queries"),
    means.length ? `${over}: ${means.join(", ")}` : "",
  ]
    .filter(Boolean)
    .join(" · ");
  const head = ["Query", "relevant", ...letters.map((letter) => `F1 ${letter}`)];
  const rows = found.queries.map((query) => row(query, events));
  fill(
    find("queries-found"),
    make("thead", {}, make("tr", {}, head.map((name) => make("th", { scope: "col" }, name)))),
    make("tbody", {}, rows),
  );
  const left = found.total - found.queries.length;
  show(find("queries-more"), left > 0 && found.queries.length < 1000);
  find("queries-more").textContent = `Show more (${count(left)} left)`;
}

function row(query, events) {
  const search = () => {
    find("queries").close();
    events.search(query.text);
  };
  const link = button({ className: "link", onclick: search }, foreign(query.text));
  const fitted =
    query.split === "test" ? null : make("span", { className: "quiet" }, ` ${query.split}`);
  const figures = [count(query.relevant), ...query.f1.map((value) => decimals(value, 2))];
  const cells = figures.map((figure) => make("td", {}, figure));
  return make("tr", {}, make("th", { scope: "row" }, link, fitted), cells);
}
