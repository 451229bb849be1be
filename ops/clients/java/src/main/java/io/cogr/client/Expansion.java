package io.cogr.client;

import jakarta.json.Json;
import jakarta.json.JsonObject;
import jakarta.json.JsonString;
import jakarta.json.JsonValue;
import java.text.Normalizer;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;

/**
 * A query's keywords.
 *
 * @param keywords the normalised query first, then its keywords
 * @param source cache, index, model, or none: then the query is its own only keyword
 * @param reason why there are none; "no expander" when the expander did not answer
 * @param clause the OpenSearch query, for a body of your own; it searches the field {@code keywords}
 * @param index the index to search, so that keywords and items are of one round; empty to use the alias
 * @param snapshots ids of the pair of snapshots, by side; without those that there are not
 */
public record Expansion(
        List<String> keywords,
        String source,
        String reason,
        JsonObject clause,
        Optional<String> index,
        Map<String, String> snapshots) {

    /** From the expander's words; {@code shared} holds what is said once for several queries. */
    static Expansion read(JsonObject answer, JsonObject shared) {
        List<String> keywords = answer.getJsonArray("keywords").getValuesAs(JsonString::getString);
        Optional<String> index = Optional.ofNullable(shared.getString("index", null));
        return new Expansion(
                List.copyOf(keywords),
                answer.getString("source"),
                answer.getString("reason"),
                answer.getJsonObject("clause"),
                index,
                snapshots(shared.getJsonObject("snapshots")));
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
        return new Expansion(keywords, "none", "no expander", clause(text), Optional.empty(), Map.of());
    }

    private static JsonObject clause(String text) {
        if (text.isEmpty()) {
            return object("match_none", Json.createObjectBuilder().build());
        }
        JsonObject match = object("match", object("keywords", object("query", text)));
        return object("bool", Json.createObjectBuilder()
                .add("should", Json.createArrayBuilder().add(match))
                .add("minimum_should_match", 1)
                .build());
    }

    static JsonObject object(String name, JsonObject value) {
        return Json.createObjectBuilder().add(name, value).build();
    }

    static JsonObject object(String name, String value) {
        return Json.createObjectBuilder().add(name, value).build();
    }
}
