"""The report of a training run: one HTML file that needs no network, for people.
`page.write_report` writes it.

`facts` reads the run, `changes` compares snapshots, `figures` says what is drawn and `drawing`
draws it. Nothing here trains.
"""
