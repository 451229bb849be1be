"""Keywords as a field of an index that somebody else owns and writes to.

target: that index, and the field that is added to it. filling: the field's values, by partial
    updates that overwrite nothing.
template: the stored search template that names the field, whose replacement is the switch.
    cleaning: old fields go.
"""
