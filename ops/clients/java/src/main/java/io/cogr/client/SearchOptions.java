package io.cogr.client;

import jakarta.json.Json;
import jakarta.json.JsonArrayBuilder;
import jakarta.json.JsonObjectBuilder;
import jakarta.json.JsonReader;
import jakarta.json.JsonValue;
import java.io.StringReader;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.opensearch.client.json.PlainJsonSerializable;
import org.opensearch.client.opensearch._types.FieldValue;
import org.opensearch.client.opensearch._types.SortOptions;
import org.opensearch.client.opensearch._types.aggregations.Aggregation;
import org.opensearch.client.opensearch._types.query_dsl.Query;

/**
 * How to search: parameters of the stored search template. Immutable; every method gives new
 * options.
 *
 * @param parameters by their names
 */
public record SearchOptions(Map<String, JsonValue> parameters) {
    private static final List<String> NAMES =
            List.of("text_query", "set_only", "size", "filters", "post_filter", "sort",
                    "search_after", "aggs", "fields");

    /**
     * @throws IllegalArgumentException a parameter that there is not: the search template would
     *   pass over it
     */
    public SearchOptions {
        for (String name : parameters.keySet()) {
            if (!NAMES.contains(name)) {
                throw new IllegalArgumentException("a search has no parameter \"" + name
                        + "\"; it takes " + String.join(", ", NAMES));
            }
        }
    }

    /** Ten results and nothing else. */
    public static SearchOptions defaults() {
        return new SearchOptions(Map.of());
    }

    /** Your own text search for the query, in place of the one in titles. */
    public SearchOptions textQuery(Query text) {
        return parameter("text_query", json(text));
    }

    /** Leave out what only the text finds. */
    public SearchOptions setOnly() {
        return parameter("set_only", JsonValue.TRUE);
    }

    /** Parameters of the search template for a query and its expansion. */
    Map<String, JsonValue> of(String query, Expansion expansion) {
        Map<String, JsonValue> given = new HashMap<>(parameters);
        given.computeIfPresent(
                "text_query", (name, clause) -> Json.createArrayBuilder().add(clause).build());
        given.put("explain", JsonValue.TRUE);
        given.put("text", Json.createValue(query.substring(0, Math.min(query.length(), 512))));
        given.put("text_boost", Json.createValue(expansion.textBoost()));
        JsonArrayBuilder weighted = Json.createArrayBuilder();
        JsonArrayBuilder without = Json.createArrayBuilder();
        for (int at = 0; at < expansion.keywords().size(); at++) {
            String word = expansion.keywords().get(at);
            double weight = expansion.weights().isEmpty() ? 1 : expansion.weights().get(at);
            if (weight == 0) {
                without.add(word);
            } else {
                weighted.add(Json.createObjectBuilder().add("keyword", word).add("weight", weight));
            }
        }
        given.put("weighted", weighted.build());
        given.put("without", without.build());
        return given;
    }

    /** Results in a page. */
    public SearchOptions size(int size) {
        return parameter("size", Json.createValue(size));
    }

    /** Query clauses that results must meet; they don't score. */
    public SearchOptions filters(Query... filters) {
        JsonArrayBuilder clauses = Json.createArrayBuilder();
        for (Query filter : filters) {
            clauses.add(json(filter));
        }
        return parameter("filters", clauses.build());
    }

    /** A query clause for the hits but not for the aggregations. */
    public SearchOptions postFilter(Query filter) {
        return parameter("post_filter", json(filter));
    }

    /** What comes before the score in the order. */
    public SearchOptions sort(SortOptions... sort) {
        JsonArrayBuilder clauses = Json.createArrayBuilder();
        for (SortOptions one : sort) {
            clauses.add(json(one::serialize));
        }
        return parameter("sort", clauses.build());
    }

    /** The {@link Hit#sort} of the last hit of the page before. */
    public SearchOptions searchAfter(List<FieldValue> sort) {
        JsonArrayBuilder values = Json.createArrayBuilder();
        for (FieldValue value : sort) {
            // Of a text it says the bare text.
            values.add(value.isString()
                    ? Json.createValue(value.stringValue())
                    : read(value._toJsonString()));
        }
        return parameter("search_after", values.build());
    }

    /** Aggregations, for facets of the set. */
    public SearchOptions aggregations(Map<String, Aggregation> aggregations) {
        JsonObjectBuilder named = Json.createObjectBuilder();
        aggregations.forEach((name, aggregation) -> named.add(name, json(aggregation)));
        return parameter("aggs", named.build());
    }

    /** More fields of the document to give back than {@code item_id} and {@code text}. */
    public SearchOptions fields(String... fields) {
        return parameter("fields", Json.createArrayBuilder(List.of(fields)).build());
    }

    /**
     * A parameter of the search template by its name, as JSON.
     *
     * @throws IllegalArgumentException there is none of this name
     */
    public SearchOptions parameter(String name, JsonValue value) {
        Map<String, JsonValue> more = new HashMap<>(parameters);
        more.put(name, value);
        return new SearchOptions(Map.copyOf(more));
    }

    private static JsonValue json(PlainJsonSerializable value) {
        return read(value.toJsonString());
    }

    private static JsonValue read(String text) {
        try (JsonReader reader = Json.createReader(new StringReader(text))) {
            return reader.readValue();
        }
    }
}
