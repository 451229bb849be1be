package io.cogr.client;

import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.IOException;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledIfEnvironmentVariable;
import org.opensearch.client.opensearch.OpenSearchClient;
import org.opensearch.client.opensearch._types.FieldValue;
import org.opensearch.client.opensearch._types.query_dsl.Query;
import org.opensearch.client.transport.OpenSearchTransport;

/**
 * What docs/clients.md shows, word for word: tests/ops/clients/test_client_docs.py compares
 * them.
 */
@EnabledIfEnvironmentVariable(named = "COGR_CLIENT_WORLD", matches = ".+")
class DocumentedTest {
    @Test
    void anExampleInAWorldThatHasNoSuchShop() throws IOException {
        try (OpenSearchTransport transport = World.transport("absent")) {
            assertThrows(SearchException.class, () -> example(transport));
        }
    }

    private static void example(OpenSearchTransport transport) {
        var opensearch = new OpenSearchClient(transport);
        var client = CogrClient.of("http://localhost:8600", opensearch)
                .prefix("shop")
                .token(System.getenv("COGR_TOKEN"))
                .build();

        Query inStock = Query.of(
                query -> query.term(term -> term.field("in_stock").value(FieldValue.of(true))));
        Found found = client.search(
                "leather couch", SearchOptions.defaults().size(20).filters(inStock));
        System.out.println(found.total() + " items, keywords from " + found.expansion().source());
        for (Hit hit : found.hits()) {
            System.out.println(hit.id() + " " + hit.score() + " " + hit.matched()
                    + " " + hit.source().getString("text"));
        }
    }
}
