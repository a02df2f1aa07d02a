"""Engine: the scheduler, the actions of users and operators, and the process that runs them.

- `tick`: one pass of the scheduler: start protocol, retries, reconciliation, time limits, preemption, image pulls
- `actions`: requests of users and operators: checked, audited and written into the store
- `hooks`: commands, a webhook and mail that are notified of ended jobs, sick GPUs and a full disk
- `host`, `loop`, `streams`: the process around the scheduler: leader or viewer, the loop of ticks, faults, memory
- `leadership`, `saved_logs`, `telemetry_files`, `files`: files in the state directory besides the queue
- `feed`: the latest snapshot and its subscribers; `job_exec`: shells and process lists of running jobs
"""
