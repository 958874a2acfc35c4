"""What is wrong with the data of a dataset, before training: `run.audit_datasets` reads them once and returns an `AuditReport`.

`verify` compares bytes with checksums; an audit looks at what the bytes mean to a learner. The checks are pure: they take
arrays (`blocks`) and return findings (`findings`). They are grouped by what they look at:

    values        columns of leaves: not finite, constant, outside their space, far outside of what is usual
    ends          flags, the episode table, returns, time limits
    transitions   a state and its successor: repeated, not joined, leading into another episode
    duplicates    episodes and transitions that occur twice, in one dataset or in two
    frames        images, of which a sample is read
    pairs         two datasets that are used together: leaves, shared episodes
"""
