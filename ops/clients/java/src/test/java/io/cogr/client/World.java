package io.cogr.client;

import jakarta.json.Json;
import jakarta.json.JsonObject;
import jakarta.json.JsonReader;
import java.io.StringReader;
import java.net.URI;
import java.time.Duration;
import org.apache.hc.core5.http.HttpHost;
import org.opensearch.client.opensearch.OpenSearchClient;
import org.opensearch.client.transport.OpenSearchTransport;
import org.opensearch.client.transport.httpclient5.ApacheHttpClient5TransportBuilder;

/**
 * A live expander and OpenSearch, and broken ones. COGR_CLIENT_WORLD holds their addresses as JSON;
 * tests/ops/clients/test_clients.py makes them and runs these tests.
 */
final class World {
    private static final JsonObject WORLD = read(System.getenv("COGR_CLIENT_WORLD"));

    private World() {}

    static String prefix() {
        return WORLD.getString("prefix");
    }

    static String token() {
        return WORLD.getString("token");
    }

    static String expander(String named) {
        return WORLD.getJsonObject("expander").getString(named);
    }

    static OpenSearchTransport transport(String named) {
        URI address = URI.create(WORLD.getJsonObject("opensearch").getString(named));
        return ApacheHttpClient5TransportBuilder.builder(HttpHost.create(address)).build();
    }

    /** The client of a case. */
    static CogrClient client(OpenSearchTransport transport, JsonObject given) {
        String expander = given.getString("expander", "up");
        return CogrClient.of(expander(expander), new OpenSearchClient(transport))
                .prefix(prefix())
                .token(given.getString("token", token()))
                .patience(expander.equals("up") ? Duration.ofSeconds(30) : Duration.ofMillis(300))
                .build();
    }

    static JsonObject read(String text) {
        try (JsonReader reader = Json.createReader(new StringReader(text))) {
            return reader.readObject();
        }
    }
}
