"""Exchange of snapshots and data with people and other programs.

export, imports         a snapshot as a file, and keyword sets from one
diff, search            two snapshots compared, a search of what serves
items, index_source     items from files, databases and indexes of a cluster
labels                  judgements and queries into a data set
results                 runs and judgements for evaluation tools and OpenSearch's Search Relevance
                        Workbench
"""
