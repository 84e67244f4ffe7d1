"""
Pods that users made and that name our scheduler: found, submitted as jobs, claimed for runs, and shown why they wait.

**Problem.** People have Jobs, training jobs and bare pods, and change one line in them: `schedulerName: tessera`. The
protocol for pods of our own leans on fixed names, a finalizer and the right to delete. Pods of users have owners that
make them again, names of their own, and budgets against disruption. So nothing of theirs is taken over: a run is
permitted to use whichever pods the group has at that time (ADR 0016).

    pods that name us         owners that can be suspended
          |                           |
          v                           v
       Groups ----- group id ---> Adopting ---- AdoptJob ----> admission --> ledger
       (watch)                   (handlers)                                    |
          |                           ^ conditions, events on pods and owners   | run, permit
          |                           |                                        v
          +------- UIDs ----------> Claims ------------- UIDs in rank order -> bind, held to UID and version

**A group** has one live job at a time, and its key is owner and shape. The pods of the next attempt give the same key,
so that nothing has to be remembered; pods that ask for something else give another key, and another job.

| state of a group | condition | operation | next |
|---|---|---|---|
| incomplete | fewer pods than the gang has | say `GangIncomplete` | whole |
| incomplete | a field cannot be honoured | say the field, note refused work | refused |
| incomplete | its namespace refuses the rest, and policy suspends what waits | suspend the owner | suspended |
| refused | the object is corrected | look again | incomplete |
| whole | budget of the tenant, or room in the ledger, is lacking | wait for a turn (`Gate`) | whole |
| whole | the namespace has let the binder in | `AdoptJob` with key, spec and UIDs | waiting |
| waiting | other pods are there, the owner survives less, or their budget is another | `PodsBack` | waiting |
| waiting | pods ask for something else | `CancelJob`, then another submit | whole |
| waiting | pods are gone for a second | `PodsGone`: the job keeps its place, out of line | away |
| waiting | policy wants it, and it has waited `tell_seconds` | suspend the owner | suspended |
| suspended | the run is allocated | resume the owner, look for its pods | claimed |
| away | pods are back | `PodsBack` | waiting |
| away | the owner is gone or over, or `pods_gone_seconds` have passed | `CancelJob` | ended |
| claimed | all pods are there and ask for what was allocated | bind | running |
| claimed | they do not come in time, or some are refused | refuse the bind: the run ends, the room is free | waiting |
| running | the owner wants more pods, and the run is whole | each of them is a group of its own | running |
| running | pods are gone that the owner wants no more | `PodsLost`: the run goes on without them | running |
| running | the run is revoked, and its owner can be suspended | suspend, wait `TAKES_AWAY_SECONDS` | away |
| running | all pods at work of a Job in waves are to stop | suspend it, resume it once they are gone | away |
| running | the run is revoked otherwise | ask all budgets, then evict each pod | away |

**What survives.**

| | binder ends | machine is lost | Redis is lost | NATS is lost |
|---|---|---|---|---|
| job, run, permitted UIDs | yes, in the ledger | yes | yes | as the ledger is restored |
| groups, ranks, keys | computed again from the pods | as before | yes | yes |
| run and rank of a bound pod | yes: annotations of its bind | with the node's pod | yes | yes |
| "given back", "suspended by us" | yes: annotations | yes | yes | yes |
| conditions on pods and owners | yes: read from them | yes | yes | yes |
| turns, delays, "submitted a moment ago" | no: counted anew, saves messages only | no | yes | yes |
| a pod that succeeded and is gone | no: then its owner is asked whether it is complete | no | yes | yes |

**Trust.**

- The *permit* says whose a pod is, by UID and rank, and no UID comes back. Labels and annotations may be taken off.
- The *version* that the watch showed is trusted for one bind. A pod that was given back has another version, so that
  the bind of a binder that is behind fails; after one refusal the pod is looked at first.
- An *owner* in the copy of a watch is trusted as last seen, since each patch names its version. A fetched one is
  trusted for `REMEMBERED_SECONDS` (15), and asked anew before a job is cancelled because it is gone.
- The *right* to bind in a namespace is trusted for `OPEN_SECONDS` (300), its lack for `CLOSED_SECONDS` (10).
- A *disruption budget* is trusted for the moment between question and eviction: others evict, too, and a 429 may come.
- A partition is worked by one replica as a rule. Two that work it for a moment send the same key and the same UIDs:
  double work changes nothing.

**Failures.**

- Two gangs name one pod: the first bind wins, the other run ends and tries again.
- A controller does not act on the resumption: the run gives its room back after `resumed_seconds`, or after
  `controller_seconds` while the controller is behind, and the owner has an event.
- A budget forbids an eviction: `BlockedByDisruptionBudget` on pod and job, asked again. Once half of a gang is gone,
  the rest does no work: after `budget_seconds` of refusals it is deleted, with an event that says so (ADR 0021).
- The owner is complete and removes its last pod: the end counts as a success (`AdoptedRuns.judged`).
- A list of pods is missing after a start: no group is looked at before it is there, or its absence would read as
  pods that are gone.

Kinds of workloads are `tessera.binder.workloads`; `decide` is pure.
"""
