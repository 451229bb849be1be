package io.cogr.client;

import jakarta.json.Json;
import jakarta.json.JsonException;
import jakarta.json.JsonObject;
import jakarta.json.JsonReader;
import jakarta.json.JsonValue;
import java.io.IOException;
import java.io.StringReader;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.opensearch.client.json.JsonData;
import org.opensearch.client.opensearch.OpenSearchClient;
import org.opensearch.client.opensearch._types.OpenSearchException;
import org.opensearch.client.opensearch._types.SearchType;
import org.opensearch.client.opensearch.core.msearch_template.RequestItem;

/**
 * Expands queries by the CoGR query expander and searches OpenSearch with their keywords. One
 * serves many threads.
 */
public final class CogrClient {
    private final OpenSearchClient opensearch;
    // The expander speaks no other; by default this HttpClient would offer HTTP/2 with its
    // requests.
    private final HttpClient http =
            HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
    private final URI expander;
    private final Optional<String> token;
    private final String prefix;
    private final Duration patience;

    private CogrClient(Builder builder) {
        opensearch = builder.opensearch;
        expander = URI.create(builder.expander.replaceAll("/+$", "") + "/expand");
        token = Optional.ofNullable(builder.token);
        prefix = builder.prefix;
        patience = builder.patience;
    }

    /**
     * A client in the making.
     *
     * @param expander address of the expander
     * @param opensearch your own client of OpenSearch, with its authentication and TLS
     */
    public static Builder of(String expander, OpenSearchClient opensearch) {
        return new Builder(expander, opensearch);
    }

    /**
     * Keywords of a query; the query alone when the expander is away.
     *
     * @throws RefusedException the expander refuses it
     */
    public Expansion expand(String query) {
        return ask(Expansion.object("query", query), Expansion::read)
                .orElseGet(() -> Expansion.fallback(query));
    }

    /** The ten best items. Errors as of {@link #search(String, SearchOptions)}. */
    public Found search(String query) {
        return search(query, SearchOptions.defaults());
    }

    /**
     * Expand and search.
     *
     * @throws RefusedException the expander refuses the query
     * @throws SearchException OpenSearch is away, refuses, or gives only a part of an answer
     */
    public Found search(String query, SearchOptions options) {
        Expansion expansion = expand(query);
        Map<String, JsonData> given = options.of(query, expansion).entrySet().stream()
                .collect(Collectors.toMap(
                        Map.Entry::getKey, parameter -> JsonData.of(parameter.getValue())));
        // Hits and counts at the same time: together they take longer.
        var hits = search(given, Map.of("hits_only", JsonValue.TRUE));
        var counts = search(given, Map.of("set_only", JsonValue.TRUE, "size", Json.createValue(0)));
        try {
            return Found.read(
                    opensearch.msearchTemplate(
                            request -> request.index(expansion.index().orElse(prefix + "-items"))
                                    .searchTemplates(hits, counts)
                                    .searchType(SearchType.DfsQueryThenFetch),
                            JsonData.class),
                    expansion);
        } catch (OpenSearchException error) {
            throw new SearchException("OpenSearch refuses: " + error.getMessage(), error);
        } catch (IOException error) {
            throw new SearchException("OpenSearch can't be reached: " + error.getMessage(), error);
        }
    }

    /** One of the searches of a request. */
    private RequestItem search(Map<String, JsonData> given, Map<String, JsonValue> more) {
        Map<String, JsonData> parameters = new HashMap<>(given);
        more.forEach((name, value) -> parameters.put(name, JsonData.of(value)));
        return RequestItem.of(item -> item.header(header -> header)
                .body(body -> body.id(prefix + "-search").params(parameters)));
    }

    /** What the expander says; empty when it is away, ill or busy. */
    private <T> Optional<T> ask(JsonObject body, Function<JsonObject, T> read) {
        Optional<HttpResponse<String>> answer = post(body);
        int status = answer.map(HttpResponse::statusCode).orElse(0);
        if (status >= 400 && status < 500 && status != 429) {
            throw new RefusedException(
                    "The expander refuses with status " + status + ": " + answer.get().body());
        }
        if (status != 200) {
            return Optional.empty();
        }
        try (JsonReader reader = Json.createReader(new StringReader(answer.get().body()))) {
            return Optional.of(read.apply(reader.readObject()));
        } catch (JsonException | ClassCastException | NullPointerException noAnswerOfOurs) {
            return Optional.empty();
        }
    }

    /** The answer, if it is whole within the patience. */
    private Optional<HttpResponse<String>> post(JsonObject body) {
        HttpRequest.Builder request = HttpRequest.newBuilder(expander)
                .header("content-type", "application/json")
                .POST(HttpRequest.BodyPublishers.ofString(body.toString()));
        token.ifPresent(secret -> request.header("authorization", "Bearer " + secret));
        var answer = http.sendAsync(request.build(), HttpResponse.BodyHandlers.ofString());
        try {
            return Optional.of(answer.get(patience.toMillis(), TimeUnit.MILLISECONDS));
        } catch (ExecutionException | TimeoutException away) {
            answer.cancel(true);
            return Optional.empty();
        } catch (InterruptedException interrupted) {
            answer.cancel(true);
            Thread.currentThread().interrupt();
            return Optional.empty();
        }
    }

    /** Settings of a client. */
    public static final class Builder {
        private final String expander;
        private final OpenSearchClient opensearch;
        private String token;
        private String prefix = "cogr";
        private Duration patience = Duration.ofMillis(500);

        private Builder(String expander, OpenSearchClient opensearch) {
            this.expander = expander;
            this.opensearch = opensearch;
        }

        /** Bearer token of the expander. */
        public Builder token(String token) {
            this.token = token;
            return this;
        }

        /**
         * {@code opensearch.prefix} of the configuration that publishes: names the alias and the
         * search template.
         */
        public Builder prefix(String prefix) {
            this.prefix = prefix;
            return this;
        }

        /** How long to wait for the expander; beyond it the query alone is used. */
        public Builder patience(Duration patience) {
            this.patience = patience;
            return this;
        }

        public CogrClient build() {
            return new CogrClient(this);
        }
    }
}
