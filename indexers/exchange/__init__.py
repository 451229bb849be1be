"""Exchange of snapshots and data with people and other programs.

keyword_sets            a snapshot as a file, and one from keyword sets in a file
diff, search            two snapshots compared, a search of what serves
items, index_source     items from files, databases and indexes of a cluster
labels                  judgements and queries into a data set
results                 runs, scores and judgements for evaluation tools
"""
