"""The report of a training run: one HTML file for people that needs no network, and its figures as
files. `page.write_report` writes them.

`facts` reads the run and compares snapshots, `figures` says what is drawn, `drawing` draws
it by matplotlib. Nothing here trains.
"""
