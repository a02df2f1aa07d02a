"""Stand-in for Kueue: a workload for each job with its label, admitted while its queue has quota."""

from __future__ import annotations

from tests.kubernetes.fake.objects import Manifest, Objects, now

LABEL = "kueue.x-k8s.io/queue-name"
GPU = "nvidia.com/gpu"


class Kueue:
    """A queue with a quota of GPUs."""

    def __init__(self, objects: Objects, quota: int) -> None:
        self.quota = quota
        self._objects = objects

    def run(self) -> None:
        """Make workloads, and admit what fits."""
        jobs = {job["metadata"]["uid"]: job for job in self._objects.all("jobs") if LABEL in job["metadata"]["labels"]}
        known = {_owner(workload): workload for workload in self._objects.all("workloads")}
        for uid, workload in known.items():
            if uid not in jobs:
                self._objects.remove("workloads", workload)
        for uid, job in jobs.items():
            if uid not in known:
                self._make(job)
        used = sum(_gpus(jobs[uid]) for uid, each in known.items() if uid in jobs and _is_admitted(each, jobs[uid]))
        for uid, workload in known.items():
            if uid in jobs and not _is_over(jobs[uid]) and not _is_admitted(workload, jobs[uid]):
                used += self._judge(workload, jobs[uid], self.quota - used)

    def _make(self, job: Manifest) -> None:
        meta = job["metadata"]
        owner = {"kind": "Job", "apiVersion": "batch/v1", "name": meta["name"], "uid": meta["uid"]}
        name = {"name": f"job-{meta['name']}", "namespace": meta["namespace"], "ownerReferences": [owner]}
        self._objects.create("workloads", {"metadata": name, "spec": {"queueName": meta["labels"][LABEL]}})
        self._objects.change("jobs", job, lambda item: item["spec"].update(suspend=True))

    def _judge(self, workload: Manifest, job: Manifest, free: int) -> int:
        """Admit a workload if it fits; return the GPUs that it takes."""
        wanted = _gpus(job)
        is_active = workload["spec"].get("active", True)
        if is_active and wanted <= free:
            reserved = _condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue lab")
            self._tell(workload, [reserved, _condition("Admitted", "True", "Admitted", "The workload is admitted")])
            self._objects.change("jobs", job, lambda item: item["spec"].update(suspend=False))
            return wanted
        more = wanted - free
        if is_active:
            words = f"couldn't assign flavors to pod set main: insufficient unused quota for {GPU}, {more} more needed"
            self._tell(workload, [_condition("QuotaReserved", "False", "Pending", words)])
        else:
            words = "The workload is deactivated"
            told = [_condition("QuotaReserved", "False", "Pending", words)]
            self._tell(workload, [*told, _condition("Evicted", "True", "Deactivated", words)])
        return 0

    def _tell(self, workload: Manifest, conditions: list[Manifest]) -> None:
        def changed(item: Manifest) -> None:
            known = item.setdefault("status", {}).get("conditions", [])
            if [each["message"] for each in known] != [each["message"] for each in conditions]:
                item["status"]["conditions"] = conditions

        self._objects.change("workloads", workload, changed)


def _condition(kind: str, status: str, reason: str, message: str) -> Manifest:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now()}


def _owner(workload: Manifest) -> str:
    return str(workload["metadata"]["ownerReferences"][0]["uid"])


def _gpus(job: Manifest) -> int:
    containers = job["spec"]["template"]["spec"]["containers"]
    return sum(int(each.get("resources", {}).get("limits", {}).get(GPU, 0)) for each in containers)


def _is_over(job: Manifest) -> bool:
    return any(each["type"] != "Suspended" for each in job.get("status", {}).get("conditions", []))


def _is_admitted(workload: Manifest, job: Manifest) -> bool:
    conditions = workload.get("status", {}).get("conditions", [])
    is_on = any(each["type"] == "Admitted" and each["status"] == "True" for each in conditions)
    return is_on and not _is_over(job)
