package io.cogr.client;

import java.util.List;
import java.util.Map;
import org.opensearch.client.json.JsonData;
import org.opensearch.client.opensearch._types.aggregations.Aggregate;
import org.opensearch.client.opensearch.core.SearchTemplateResponse;

/**
 * The answer to a search.
 *
 * @param total the size of the set: what the keywords find, and items that have every word of the
 *   query in one field
 * @param more how many more the text finds
 * @param hits the best of the set, then of the rest
 * @param aggregations facets of the set
 * @param expansion what the search was made with
 */
public record Found(
        long total,
        long more,
        List<Hit> hits,
        Map<String, Aggregate> aggregations,
        Expansion expansion) {

    /** From OpenSearch's words. */
    static Found read(SearchTemplateResponse<JsonData> answer, Expansion expansion) {
        if (answer.timedOut() || answer.shards().failed() > 0) {
            throw new SearchException("OpenSearch gave only a part of the answer; search again");
        }
        List<Hit> hits = answer.hits().hits().stream().map(Hit::read).toList();
        long total = answer.aggregations().get("total").filter().docCount();
        Map<String, Aggregate> facets = answer.aggregations().get("set").filter().aggregations();
        return new Found(total, answer.hits().total().value() - total, hits, facets, expansion);
    }
}
