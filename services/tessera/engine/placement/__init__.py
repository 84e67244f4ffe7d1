"""
Placement: whether pods fit nodes, and where a gang goes.

**Problem.** A gang starts whole or not at all, on devices that nobody else has, within domains that it names, thousands
of times a second on ten thousand nodes. The same question is asked by the committer, by plans, by `explain` and by a
replay years later, and all of them must give the same answer. So placement is pure: nodes and a gang in, placements or
a reason out, integers only, and every tie ends with a name.

    roles --> placement_groups --> bundle sets         pods that share a node are one bundle
                                       |
    nodes --> feasible_nodes           v               which nodes suit a kind at all: labels, taints, models
          --> rows (table, counts) -> Attempt          what is free: kinds x nodes, in arrays
                                       |
                topology: a domain, few domains, even  |  fill: the best node for each bundle in turn
                                       v
              placements in rank order, or refusals: the first set that failed, with numbers

**One try** (`Attempt`) reads the nodes and keeps apart what it changes, so that a try costs what it touches.

| state | condition | operation | next |
|---|---|---|---|
| open | no node takes pods | `NoNodes`, or how many are cordoned | refused |
| open | the next group names no domain and no spread | fill its sets, the best node for each bundle | open |
| open | the next group names levels | each domain with room, the tightest first, from the narrowest level | open |
| open | a domain holds some of the sets | back to the savepoint, the next domain | open |
| open | no domain holds the group, and it need not be in one | as few domains as can be, then anywhere | open |
| open | the group is bound or spread, and fails | the reason, with the most that one domain holds | refused |
| open | a bundle finds no node | the reason, with the pods that were placed | refused |
| open | all groups are placed | placements in rank order | placed |

**One pass** over a queue order keeps a `FreeCapacity` per pool and flavor. Room only shrinks within it, so that the
first verdict on a gang stands for all equal ones, by value and not by identity: a committer that was restored must give
the numbers that another one gives which folded the whole ledger.

**What survives a crash: nothing, of no kind of crash.** Tables, counts, rankings and verdicts are memory of one process
and are made again from the state, whether the process, the machine, Redis or NATS was lost. What was decided is a
record in the ledger. That is the test of every memory here: with it and without it the placements are equal, and only
the time differs (`tests/property/plain_rule.py`, `test_ranks.py`, `test_standing_refusals.py`).

**Trust.**

- *Suitability* (`never_fits`) is trusted for as long as the node's labels, taints, models and readiness are the same.
  Allocations change none of these, so that one look serves a whole pass.
- *Counts and ranks* are trusted until a node changes. Whoever changes a node tells the table; before the next answer
  its row is read again (ADR 0045), and nothing else goes stale.
- A *search in vain* is trusted until a node changes that suits the gang; a *lack of room by sums* until a kind of its
  pods gains room somewhere.
- A *placement* that somebody else proposes is trusted by nobody: the committer asks `faults` and `relations` at the
  head of the ledger, which look at the pods' nodes and not at how they were found.
- *Inadmissible for good* is said of empty, ready nodes only, and rests on counts that no way of placing can beat.

**What fails, and then.**

- Best fit is no exact search: a gang of mixed pods may be told `NoFit` though some arrangement holds it. Pods of one
  role are equal, and for them it is exact. No gang is ever placed where it does not fit.
- More domains have room than are tried: the tightest ones and the roomiest are, and a gang that goes into none of them
  waits or spreads.
- A node vanishes between the decision and the bind: that is the binder's to find. The run ends without a counted
  attempt, and the next pass sees the node as it is.

Modules: `fits` (one node), `mig` (positions in a device), `placement_groups` (bundles), `feasible_nodes`
(suitability), `rows` (tables), `attempt` and `topology` (the search), `gangs` (whole gangs, one after the other),
`refusals` (reasons), `faults` and `relations` (checks), `inadmissible` (never), `free_slots` (what is left), `capacity`
(nodes as decisions see them).
"""
