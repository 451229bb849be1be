"""Exchange of snapshots and data with people and other programs.

export, diff, search    a snapshot as a file, two snapshots compared, a search of what serves
imports                 keyword sets, queries of a log and judgements, from files
item_import             items from files and databases (`sources`), or from an index of a cluster
                        (`index_source`)
workbench               runs and judgements for evaluation tools and OpenSearch's Search
                        Relevance Workbench
"""
