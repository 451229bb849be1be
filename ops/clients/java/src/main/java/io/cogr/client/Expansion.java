package io.cogr.client;

import jakarta.json.Json;
import jakarta.json.JsonNumber;
import jakarta.json.JsonObject;
import jakarta.json.JsonString;
import jakarta.json.JsonValue;
import java.text.Normalizer;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.stream.Collectors;

/**
 * A query's keywords.
 *
 * @param keywords the normalised query first, then its keywords
 * @param source cache, index, model, or none: then the query is its own only keyword
 * @param reason why there are none; "no expander" when the expander did not answer
 * @param clause the OpenSearch query, for a body of your own: first the set, then what more the
 *   text finds. The fallback's has the query alone
 * @param set the query of the set alone, as a filter for counts and facets
 * @param index the index to search, so that keywords and items are of one round; empty to use the
 *   alias
 * @param snapshots ids of the pair of snapshots, by side; without those that there are not
 * @param weights how much each keyword counts in the order of what is found; empty where all are 1
 * @param confidence the expected F1 of what the keywords find, 0 to 1; empty where it is unknown
 * @param textBoost how much the text's score counts beside the keywords'
 */
public record Expansion(
        List<String> keywords,
        String source,
        String reason,
        JsonObject clause,
        JsonObject set,
        Optional<String> index,
        Map<String, String> snapshots,
        List<Double> weights,
        OptionalDouble confidence,
        double textBoost) {

    /** From the expander's words. */
    static Expansion read(JsonObject answer) {
        List<String> keywords = answer.getJsonArray("keywords").getValuesAs(JsonString::getString);
        JsonValue confidence = answer.get("confidence");
        return new Expansion(
                List.copyOf(keywords),
                answer.getString("source"),
                answer.getString("reason"),
                answer.getJsonObject("clause"),
                answer.getJsonObject("set"),
                Optional.ofNullable(answer.getString("index", null)),
                snapshots(answer.getJsonObject("snapshots")),
                answer.getJsonArray("weights").getValuesAs(JsonNumber::doubleValue),
                confidence instanceof JsonNumber number
                        ? OptionalDouble.of(number.doubleValue())
                        : OptionalDouble.empty(),
                answer.getJsonNumber("text_boost").doubleValue());
    }

    private static Map<String, String> snapshots(JsonObject pair) {
        return pair.keySet().stream()
                .filter(side -> pair.get(side).getValueType() == JsonValue.ValueType.STRING)
                .collect(Collectors.toUnmodifiableMap(side -> side, pair::getString));
    }

    /** Without an expander: near enough to its normalisation for plain words. */
    static Expansion fallback(String query) {
        String text = Normalizer.normalize(query, Normalizer.Form.NFKC).toLowerCase(Locale.ROOT);
        text = text.replaceAll("(?U)[\\s,;、،؛]+", " ").strip();
        List<String> keywords = text.isEmpty() ? List.of() : List.of(text);
        return new Expansion(
                keywords, "none", "no expander", clause(text), clause(text),
                Optional.empty(), Map.of(), List.of(), OptionalDouble.empty(), 1);
    }

    private static JsonObject clause(String text) {
        if (text.isEmpty()) {
            return object("match_none", Json.createObjectBuilder().build());
        }
        return object("match", object("keywords", object("query", text)));
    }

    static JsonObject object(String name, JsonObject value) {
        return Json.createObjectBuilder().add(name, value).build();
    }

    static JsonObject object(String name, String value) {
        return Json.createObjectBuilder().add(name, value).build();
    }
}
