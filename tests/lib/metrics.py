"""The broker's metrics that the proofs read: one place for their names."""

REQUESTS = "tailrace_requests_total"
HOPS = "tailrace_cross_shard_hops_total"
COMMITS = "tailrace_journal_commits_total"
SYNCS = "tailrace_journal_syncs_total"
BACKGROUND_SYNCS = "tailrace_background_syncs_total"
GROUPS = "tailrace_groups"
CONNECTIONS = "tailrace_connections"
MALFORMED = "tailrace_malformed_requests_total"
REFUSALS = "tailrace_refusals_total"
DISK_FULL = "tailrace_disk_full"
MEMORY_USED = "tailrace_memory_used_bytes"


def by_shard(broker, name):
    """{shard: value}, summed over the other labels."""
    values = {}
    for sample, labels, value in broker.metrics():
        if sample == name:
            values[labels.get("shard", "")] = values.get(labels.get("shard", ""), 0) + value
    if not values:
        raise KeyError(f"/metrics has no {name}")
    return values


def total(broker, name):
    return sum(by_shard(broker, name).values())
