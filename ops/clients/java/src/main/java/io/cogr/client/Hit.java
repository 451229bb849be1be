package io.cogr.client;

import jakarta.json.JsonObject;
import java.util.List;
import org.opensearch.client.json.JsonData;
import org.opensearch.client.opensearch._types.FieldValue;

/**
 * One item.
 *
 * @param id the item's id
 * @param score its BM25 score
 * @param source the document's {@code item_id}, {@code text} and the fields that were asked for
 * @param matched the keywords that it was found by
 * @param sort continues a search ({@link SearchOptions#searchAfter})
 */
public record Hit(
        String id, double score, JsonObject source, List<String> matched, List<FieldValue> sort) {

    /** From OpenSearch's words. */
    static Hit read(org.opensearch.client.opensearch.core.search.Hit<JsonData> hit) {
        JsonObject source = hit.source().toJson().asJsonObject();
        // Every order ends with score and id, whatever comes before.
        double score = hit.sort().get(hit.sort().size() - 2).doubleValue();
        return new Hit(
                source.getString("item_id"), score, source, hit.matchedQueries(), hit.sort());
    }
}
