package io.cogr.client;

import java.util.List;
import java.util.Map;
import org.opensearch.client.json.JsonData;
import org.opensearch.client.opensearch._types.aggregations.Aggregate;
import org.opensearch.client.opensearch.core.SearchTemplateResponse;

/**
 * The answer to a search.
 *
 * @param total how many items match in all
 * @param hits the best of them
 * @param aggregations facets
 * @param expansion what the search was made with
 */
public record Found(
        long total, List<Hit> hits, Map<String, Aggregate> aggregations, Expansion expansion) {

    /** From OpenSearch's words. */
    static Found read(SearchTemplateResponse<JsonData> answer, Expansion expansion) {
        if (answer.timedOut() || answer.shards().failed() > 0) {
            throw new SearchException("OpenSearch gave only a part of the answer; search again");
        }
        List<Hit> hits = answer.hits().hits().stream().map(Hit::read).toList();
        return new Found(answer.hits().total().value(), hits, answer.aggregations(), expansion);
    }
}
