package io.cogr.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.json.Json;
import jakarta.json.JsonArrayBuilder;
import jakarta.json.JsonObject;
import jakarta.json.JsonObjectBuilder;
import jakarta.json.JsonValue;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.opensearch.client.opensearch.OpenSearchClient;
import org.opensearch.client.opensearch._types.FieldValue;
import org.opensearch.client.opensearch._types.SortOptions;
import org.opensearch.client.opensearch._types.SortOrder;
import org.opensearch.client.opensearch._types.aggregations.Aggregation;
import org.opensearch.client.opensearch._types.query_dsl.Query;
import org.opensearch.client.transport.OpenSearchTransport;

/** The client does what ../conformance.json says. */
@EnabledIfEnvironmentVariable(named = "COGR_CLIENT_WORLD", matches = ".+")
class ConformanceTest {
    private static final Map<String, Class<? extends Exception>> ERRORS =
            Map.of("refused", RefusedException.class, "search", SearchException.class,
                    "option", IllegalArgumentException.class);

    @TestFactory
    Stream<DynamicTest> doesWhatEveryClientDoes() throws IOException {
        return cases()
                .map(given -> DynamicTest.dynamicTest(given.getString("name"), () -> check(given)));
    }

    private static Stream<JsonObject> cases() throws IOException {
        JsonObject conformance = World.read(Files.readString(Path.of("../conformance.json")));
        return conformance.getJsonArray("cases").getValuesAs(JsonObject.class).stream();
    }

    @Test
    void optionsAreTyped() throws IOException {
        try (OpenSearchTransport transport = World.transport("up")) {
            CogrClient client = World.client(transport, JsonValue.EMPTY_JSON_OBJECT);
            Query one = Query.of(query -> query.ids(ids -> ids.values("item-085")));
            Aggregation count = Aggregation.of(
                    agg -> agg.valueCount(value -> value.field("item_id")));
            SearchOptions options = SearchOptions.defaults()
                    .size(1).fields("keywords").aggregations(Map.of("n", count));
            Found found = client.search("leather couch", options);
            assertEquals(4, found.aggregations().get("n").valueCount().value());
            assertTrue(found.hits().get(0).source().containsKey("keywords"));
            assertEquals(0, client.search("wooden lamp", options.filters(one)).total());
            SortOptions cheapest = SortOptions.of(
                    sort -> sort.field(by -> by.field("price").order(SortOrder.Asc)));
            Query inStock = Query.of(query -> query.term(
                    term -> term.field("in_stock").value(FieldValue.of(true))));
            SearchOptions ordered = SearchOptions.defaults().sort(cheapest).postFilter(inStock);
            assertEquals("item-092", client.search("leather couch", ordered).hits().get(0).id());
            assertEquals(3, client.search("leather couch", ordered).total());
        }
    }

    private void check(JsonObject given) throws IOException {
        JsonObject expected = given.getJsonObject("expect");
        try (OpenSearchTransport transport = World.transport(given.getString("opensearch", "up"))) {
            CogrClient client = World.client(transport, given);
            if (expected.containsKey("error")) {
                assertThrows(
                        ERRORS.get(expected.getString("error")), () -> searched(client, given));
            } else {
                assertEquals(expected, seen(searched(client, given), expected));
            }
        }
    }

    private static Found searched(CogrClient client, JsonObject given) {
        SearchOptions options = SearchOptions.defaults();
        JsonValue asked = given.getOrDefault("options", JsonValue.EMPTY_JSON_OBJECT);
        for (var option : asked.asJsonObject().entrySet()) {
            options = options.parameter(option.getKey(), option.getValue());
        }
        Found found = client.search(given.getString("query"), options);
        for (int page = 1; page < given.getInt("page", 1); page++) {
            List<FieldValue> last = found.hits().get(found.hits().size() - 1).sort();
            found = client.search(given.getString("query"), options.searchAfter(last));
        }
        return found;
    }

    /**
     * What a search found, in the words of the conformance file, as far as a case expects
     * something.
     */
    private static JsonObject seen(Found found, JsonObject expected) {
        JsonObjectBuilder seen = Json.createObjectBuilder();
        expected.keySet().forEach(name -> seen.add(name, seen(found, name, expected)));
        return seen.build();
    }

    private static JsonValue seen(Found found, String name, JsonObject expected) {
        return switch (name) {
            case "source" -> Json.createValue(found.expansion().source());
            case "reason" -> Json.createValue(found.expansion().reason());
            case "text_boost" -> Json.createValue(found.expansion().textBoost());
            case "confidence" -> Json.createValue(found.expansion().confidence().orElseThrow());
            case "weights" -> Json.createArrayBuilder(found.expansion().weights()).build();
            case "keywords" -> array(found.expansion().keywords().stream());
            case "total" -> Json.createValue((int) found.total());
            case "more" -> Json.createValue((int) found.more());
            case "tiers" -> array(found.hits().stream().map(Hit::tier));
            case "ids" -> array(found.hits().stream().map(Hit::id));
            case "best" -> Json.createValue(
                    found.hits().stream().max(Comparator.comparingDouble(Hit::score))
                            .orElseThrow().id());
            case "matched" -> array(found.hits().get(0).matched().stream().sorted());
            case "text" -> found.hits().get(0).source().get("text");
            case "field" -> {
                JsonObjectBuilder fields = Json.createObjectBuilder();
                expected.getJsonObject("field").keySet()
                        .forEach(field -> fields.add(
                                field, found.hits().get(0).source().get(field)));
                yield fields.build();
            }
            case "facet" -> {
                JsonObjectBuilder buckets = Json.createObjectBuilder();
                found.aggregations().get("facet").sterms().buckets().array()
                        .forEach(bucket -> buckets.add(bucket.key(), bucket.docCount()));
                yield buckets.build();
            }
            default -> throw new IllegalArgumentException(name);
        };
    }

    private static JsonValue array(Stream<String> texts) {
        JsonArrayBuilder array = Json.createArrayBuilder();
        texts.forEach(array::add);
        return array.build();
    }
}
