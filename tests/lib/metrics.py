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
PRODUCE_TIMES = "tailrace_produce_seconds"
COMMIT_TIMES = "tailrace_journal_commit_seconds"
DISK_FULL = "tailrace_disk_full"
JOURNAL_LIVE = "tailrace_journal_live_bytes"
MEMORY_USED = "tailrace_memory_used_bytes"
MEMORY_BUDGET = "tailrace_memory_budget_bytes"


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


def times(broker, name):
    """A histogram of all shards together: {upper bound in seconds: how many were no longer}."""
    counts = {}
    for sample, labels, value in broker.metrics():
        if sample == f"{name}_bucket":
            bound = float(labels["le"].replace("+Inf", "inf"))
            counts[bound] = counts.get(bound, 0) + value
    if not counts:
        raise KeyError(f"/metrics has no {name}_bucket")
    return counts


def percentile_ms(before, after, share):
    """An upper bound of the percentile of what came between two histograms, less than 1.5 times off; None if nothing
    came."""
    came = {bound: after[bound] - before[bound] for bound in sorted(after)}
    whole = came[float("inf")]
    return next((bound * 1000 for bound, count in came.items() if count >= share * whole), None) if whole else None
