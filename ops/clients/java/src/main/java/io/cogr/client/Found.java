package io.cogr.client;

import java.util.List;
import java.util.Map;
import org.opensearch.client.json.JsonData;
import org.opensearch.client.opensearch._types.aggregations.Aggregate;
import org.opensearch.client.opensearch.core.MsearchTemplateResponse;
import org.opensearch.client.opensearch.core.SearchResponse;
import org.opensearch.client.opensearch.core.msearch.MultiSearchResponseItem;

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

    /** From OpenSearch's words, for hits and for counts. */
    static Found read(MsearchTemplateResponse<JsonData> answers, Expansion expansion) {
        SearchResponse<JsonData> answer = whole(answers.responses().get(0));
        Map<String, Aggregate> counts = whole(answers.responses().get(1)).aggregations();
        List<Hit> hits = answer.hits().hits().stream().map(Hit::read).toList();
        long total = counts.get("total").filter().docCount();
        Map<String, Aggregate> facets = counts.get("set").filter().aggregations();
        return new Found(total, answer.hits().total().value() - total, hits, facets, expansion);
    }

    private static SearchResponse<JsonData> whole(MultiSearchResponseItem<JsonData> item) {
        if (item.isFailure()) {
            throw new SearchException("OpenSearch refuses: " + item.failure().error().reason());
        }
        if (item.result().timedOut() || item.result().shards().failed() > 0) {
            throw new SearchException("OpenSearch gave only a part of the answer; search again");
        }
        return item.result();
    }
}
