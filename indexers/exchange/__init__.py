"""Exchange of snapshots and data with people and other programs.

keyword_sets            a snapshot as a file, and one from keyword sets in a file
search                  a search of what serves; two snapshots compared
items                   items from files, databases and indexes of a cluster
labels                  judgements and queries into a data set; runs and scores for other tools
"""
