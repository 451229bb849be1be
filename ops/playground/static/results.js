// What was found: the pairs side by side, hits with what matched, figures, the baseline, what was
// missed, the request.

import { count, decimals, extra, fill, find, foreign, make, many, show } from "./dom.js";

const LANGUAGES = { curl: "curl", python: "Python", json: "JSON" };

/** The two pairs to choose from: a radio button, a list of pairs, and how each does. */
export function showPairs(state, choices, answers, events) {
  const cards = state.pairs.map((pair, at) => {
    const letter = "AB"[at];
    const radio = make("input", {
      type: "radio",
      name: "shown",
      id: `shown-${at}`,
      checked: at === state.shown,
    });
    radio.addEventListener("change", () => events.switchTo(at));
    const select = make(
      "select",
      { "aria-label": `Snapshots of ${letter}` },
      choices.map((choice, number) =>
        make("option", { value: number, selected: choice === pair }, name(choice)),
      ),
    );
    select.addEventListener("change", () => events.choose(at, choices[Number(select.value)]));
    return make(
      "div",
      { className: "pair" },
      make(
        "label",
        { htmlFor: radio.id },
        radio,
        make("strong", {}, letter),
        make("span", { className: "sum" }, sum(answers?.[at])),
      ),
      select,
      make("p", { className: "ids quiet" }, `${pair.item} · ${pair.query ?? "no query snapshot"}`),
    );
  });
  fill(find("pairs"), find("pairs").firstElementChild, cards);
}

/**
 * A pair in a list, told from every other one: by the beginnings of the two content hashes, where
 * all else is the same.
 */
function name(choice) {
  const when = choice.created.replace("T", " ").slice(0, 16);
  const writer = [choice.generator || "imported", choice.model].filter(Boolean).join(" ");
  const hashes = [choice.item, choice.query]
    .map((id) => id?.slice(-12, -6) ?? "no queries")
    .join("+");
  return [choice.serving ? "serving" : "", `round ${choice.round}`, writer, hashes, when]
    .filter(Boolean)
    .join(" · ");
}

function sum(answer) {
  if (!answer) return "…";
  const found = many(answer.total, "item");
  return answer.figures ? `${found} · F1 ${decimals(answer.figures.f1, 2)}` : found;
}

/** The hits of the pair that is shown. */
export function showHits(state, answer, words, events) {
  const beside = state.pairs.length > 1 ? "BA"[state.shown] : null;
  const best = answer.hits[0]?.score ?? 1;
  fill(
    find("hits"),
    answer.hits.map((hit) =>
      make(
        "li",
        { className: hit.relevant ? "hit relevant" : "hit" },
        title(hit, events, [
          hit.relevant ? make("span", { className: "tag good" }, "relevant") : null,
          beside && hit.elsewhere === false
            ? make("span", { className: "tag" }, `not in ${beside}`)
            : null,
        ]),
        extra(hit.fields),
        bar(hit, best, words),
        make(
          "ul",
          { className: "matched" },
          Object.entries(hit.matched).map(([keyword, part]) =>
            make(
              "li",
              { className: `tone${words.tone(keyword)}` },
              make("span", { className: "dot", "aria-hidden": "true" }),
              foreign(keyword),
              make("span", { className: "part" }, ` ${decimals(part, 3)}`),
            ),
          ),
        ),
      ),
    ),
  );
  if (!answer.hits.length)
    fill(
      find("hits"),
      empty(
        answer.keywords.length
          ? "No item has one of these keywords."
          : "There is no keyword to search for.",
      ),
    );
  const left = answer.total - answer.hits.length;
  show(find("further"), left > 0 && answer.hits.length < 200);
  find("further").textContent = `Show more (${count(left)} left)`;
  figures(
    find("figures"),
    answer,
    words.changed ? state.before[state.shown] : null,
    make("small", {}, ` of ${count(answer.entities)}`),
  );
  showMissed(answer, events);
}

function title(hit, events, tags) {
  const button = make(
    "button",
    { type: "button", className: "link title", title: `${hit.id}: its keywords and queries` },
    foreign(hit.title || hit.id),
  );
  button.addEventListener("click", () => events.open(hit.id));
  return make(
    "div",
    { className: "line" },
    button,
    make("span", { className: "tags" }, tags),
    make("span", { className: "score" }, decimals(hit.score, 3)),
  );
}

/** The score as a bar, cut into the parts of its keywords. */
function bar(hit, best, words) {
  const whole = make("div", { className: "bar", "aria-hidden": "true" });
  for (const [keyword, part] of Object.entries(hit.matched ?? {})) {
    const piece = make("span", { className: `tone${words.tone(keyword)}` });
    piece.style.width = `${(100 * part) / best}%`;
    whole.append(piece);
  }
  return whole;
}

const empty = (text) => make("li", { className: "empty" }, text);

const FIGURES = [
  ["p", "P"],
  ["r", "R"],
  ["f1", "F1"],
];
const RANKS = [
  ["ndcg", "nDCG@10"],
  ["mrr", "MRR@10"],
];

/** Size of the retrieved set and its figures, with what changed since the answer `before`. */
function figures(list, found, before, beside) {
  const row = (label, value, places, old, more) =>
    make(
      "div",
      {},
      make("dt", {}, label),
      make("dd", {}, decimals(value, places), more, change(value, old, places)),
    );
  fill(
    list,
    row("items", found.total, 0, before?.total, beside),
    found.figures
      ? FIGURES.map(([name, label]) => row(label, found.figures[name], 2, before?.figures?.[name]))
      : null,
    found.ranks
      ? RANKS.map(([name, label]) => row(label, found.ranks[name], 2, before?.ranks?.[name]))
      : null,
    found.ranks
      ? make(
          "div",
          { className: "first" },
          make("dt", {}, "first relevant"),
          make(
            "dd",
            {},
            found.ranks.first === null ? "none" : `at rank ${count(found.ranks.first)}`,
          ),
        )
      : null,
  );
}

function change(value, old, places) {
  if (old === undefined || decimals(value, places) === decimals(old, places)) return null;
  const kind = places ? (value > old ? "up" : "down") : "";
  return make(
    "small",
    { className: `delta ${kind}` },
    ` ${value > old ? "+" : "−"}${decimals(Math.abs(value - old), places)}`,
  );
}

function showMissed(answer, events) {
  const missed = answer.missed ?? [];
  show(find("missed"), missed.length > 0);
  const [summary, list] = find("missed").children;
  summary.textContent = `${many(answer.missed_total ?? 0, "relevant item")} not found`;
  fill(
    list,
    missed.map((one) => {
      const button = make("button", { type: "button", className: "link" }, foreign(one.title));
      button.addEventListener("click", () => events.open(one.id));
      return make("li", {}, button);
    }),
  );
}

/** The baseline's hits; a sentence instead where there is none. */
export function showBaseline(found, events) {
  const best = found.hits[0]?.score ?? 1;
  const hits = found.hits.map((hit, at) => {
    const line = make(
      "div",
      { className: "bar", "aria-hidden": "true" },
      make("span", { className: "plain-tone" }),
    );
    line.firstElementChild.style.width = `${(100 * hit.score) / best}%`;
    return make(
      "li",
      { className: `hit ${hit.relevant ? "relevant" : ""} ${at >= found.cut ? "beyond" : ""}` },
      title(hit, events, [
        hit.relevant ? make("span", { className: "tag good" }, "relevant") : null,
      ]),
      line,
    );
  });
  if (hits.length > found.cut)
    hits.splice(found.cut, 0, make("li", { className: "cut" }, "as many as the keywords find"));
  fill(find("baseline"), hits.length ? hits : empty("No item's text has one of these words."));
  figures(
    find("baseline-figures"),
    { total: found.cut, figures: found.cut ? found.figures : null, ranks: found.ranks },
    null,
    make("small", {}, " best ones"),
  );
}

export function showNoBaseline(sentence) {
  fill(find("baseline"), empty(sentence));
  fill(find("baseline-figures"));
}

/** The request of the pair that is shown, in the language that is chosen. */
export function showRequest(state, answer, events) {
  fill(
    find("languages"),
    Object.entries(LANGUAGES).map(([language, label]) => {
      const radio = make("input", {
        type: "radio",
        name: "language",
        id: `language-${language}`,
        checked: state.language === language,
        className: "unseen",
      });
      radio.addEventListener("change", () => events.speak(language));
      return [radio, make("label", { htmlFor: radio.id }, label)];
    }),
  );
  find("request").textContent = answer.requests[state.language];
}

/** What the cluster said to the same search. */
export function showLive(found) {
  const badge = find("live");
  show(badge, found !== null);
  if (found === null) return;
  badge.className = `badge ${found.same ? "good" : "warn"}`;
  badge.textContent = found.same
    ? `the cluster says the same, in ${decimals(found.milliseconds, 1)} ms`
    : `the cluster differs: ${count(found.total)} items instead of ${count(found.expected)}`;
}
