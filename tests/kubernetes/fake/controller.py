"""Controllers of the fake Kubernetes: they make pods of jobs, schedule them by their GPUs, and tell how they are."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from itertools import count

from tests.kubernetes.fake.kueue import Kueue
from tests.kubernetes.fake.objects import Manifest, Objects, now

GPU = "nvidia.com/gpu"
PLACE = "batch.kubernetes.io/job-completion-index"
Priorities = dict[str, int]


class Controller:
    """Brings the objects into the state that their requests ask for, as far as possible without containers."""

    def __init__(self, objects: Objects, release: tuple[int, int], priorities: Priorities, kueue: Kueue | None) -> None:
        self.unpullable: set[str] = set()
        """Images that cannot be pulled."""
        self.claims: set[str] = set()
        """Names of the claims for volumes that exist."""
        self.restricted: set[str] = set()
        """Namespaces whose pods have to be as the standard `restricted` of PodSecurity wants them."""
        self.quota: int | None = None
        """Most pods of a namespace."""
        self.first_lines: tuple[str, ...] = ("ready",)
        self.is_slow_to_end = False
        """Whether pods that are deleted stay until `end_deleted`."""
        self.lost_logs: set[str] = set()
        """Uids of pods whose containers their nodes have removed."""
        self.logs: dict[str, list[tuple[str, str]]] = {}
        self._objects = objects
        self._release = release
        self._priorities = priorities
        self._kueue = kueue
        self._numbers = count(1)

    def run(self) -> None:
        """Reconcile until nothing changes any more."""
        with self._objects.lock:
            before = -1
            while before != self._objects.version:
                before = self._objects.version
                self._garbage()
                if self._kueue is not None:
                    self._kueue.run()
                for job in self._objects.all("jobs"):
                    self._job(job)
                self._schedule()
                self._start()

    def finish(self, pod: Manifest, exit_code: int, reason: str | None = None, pod_reason: str | None = None) -> None:
        """End a pod's container."""
        with self._objects.lock:
            terminated = {"exitCode": exit_code, "reason": reason or ("Error" if exit_code else "Completed")}
            terminated |= {"startedAt": pod["status"].get("startTime", now()), "finishedAt": now()}

            def ended(item: Manifest) -> None:
                status = item["status"]
                status["phase"] = "Failed" if exit_code else "Succeeded"
                status["containerStatuses"][0]["state"] = {"terminated": terminated}
                if pod_reason:
                    status["reason"] = pod_reason

            self._objects.change("pods", pod, ended)
            self.run()

    def write(self, pod: Manifest, line: str) -> None:
        """Add a line to a pod's output."""
        with self._objects.changed:
            at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "000Z")
            self.logs.setdefault(pod["metadata"]["uid"], []).append((at, line))
            self._objects.changed.notify_all()

    def end_deleted(self) -> None:
        """Let the pods end that were deleted."""
        with self._objects.lock:
            for pod in self._objects.all("pods"):
                if "deletionTimestamp" in pod["metadata"]:
                    self._objects.remove("pods", pod)
            self.run()

    def _garbage(self) -> None:
        """Remove pods of jobs that are gone, and jobs that wait for the end of their pods."""
        jobs = {job["metadata"]["uid"]: job for job in self._objects.all("jobs")}
        for pod in self._objects.all("pods"):
            owner = _owner(pod)
            gone = owner and (owner not in jobs or "deletionTimestamp" in jobs[owner]["metadata"])
            if gone:
                self._delete_pod(pod)
        for template in self._objects.all("resourceclaimtemplates"):
            if _owner(template) not in jobs:
                self._objects.remove("resourceclaimtemplates", template)
        left = {_owner(pod) for pod in self._objects.all("pods")}
        for uid, job in jobs.items():
            if "deletionTimestamp" in job["metadata"] and uid not in left:
                self._objects.remove("jobs", job)

    def _delete_pod(self, pod: Manifest) -> None:
        if not self.is_slow_to_end or not pod["spec"].get("nodeName"):
            self._objects.remove("pods", pod)
        elif "deletionTimestamp" not in pod["metadata"]:
            self._objects.change("pods", pod, lambda item: item["metadata"].update(deletionTimestamp=now()))

    def _job(self, job: Manifest) -> None:
        if _has_ended(job):
            return
        pods = [pod for pod in self._objects.all("pods") if _owner(pod) == job["metadata"]["uid"]]
        if job["spec"].get("suspend"):
            for pod in pods:
                self._delete_pod(pod)
            self._status(job, [], [{"type": "Suspended", "status": "True", "lastTransitionTime": now()}])
            return
        done = [pod for pod in pods if pod["status"]["phase"] in {"Succeeded", "Failed"}]
        if job["spec"].get("completionMode") == "Indexed":
            self._elements(job, pods)
        elif not pods and "deletionTimestamp" not in job["metadata"]:
            self._create_pod(job)
        elif pods and len(done) == len(pods):
            self._end(job, pods)
        else:
            self._status(job, pods, [])

    def _elements(self, job: Manifest, pods: list[Manifest]) -> None:
        """Make pods for the next elements of an indexed job, and tell which have ended."""
        place = {pod["metadata"]["uid"]: int(pod["metadata"]["annotations"][PLACE]) for pod in pods}
        ended = {"Succeeded": "completedIndexes", "Failed": "failedIndexes"}
        status = job.get("status", {})
        known = {name: set(_numbers(status.get(name, ""))) for name in ended.values()}
        for pod in pods:
            if (phase := pod["status"]["phase"]) in ended:
                known[ended[phase]].add(place[pod["metadata"]["uid"]])
        lists = {name: ",".join(map(str, sorted(found))) for name, found in known.items()}
        self._objects.change("jobs", job, lambda item: item["status"].update(lists))
        over = set[int]().union(*known.values())
        active = [pod for pod in pods if place[pod["metadata"]["uid"]] not in over]
        left = sorted(set(range(job["spec"]["completions"])) - over - {place[pod["metadata"]["uid"]] for pod in active})
        if not left and not active:
            kind: Manifest = {"type": "Failed", "reason": "FailedIndexes", "message": "Job has failed indexes"}
            kind = kind if known["failedIndexes"] else {"type": "Complete"}
            self._status(job, pods, [{"status": "True", "lastTransitionTime": now(), **kind}], is_over=True)
            return
        room = job["spec"]["parallelism"] - len(active)
        for index in left[: max(0, room)] if "deletionTimestamp" not in job["metadata"] else ():
            self._create_pod(job, index)
        self._status(job, pods, [])

    def lose(self, pod: Manifest) -> None:
        """End a pod that somebody deletes; its element of an indexed job counts as failed."""

        def killed(item: Manifest) -> None:
            item["status"]["phase"] = "Failed"
            for each in item["status"].get("containerStatuses", ()):
                each["state"] = {"terminated": {"exitCode": 137, "reason": "Error", "finishedAt": now()}}

        self._objects.change("pods", pod, killed)
        owner = next((job for job in self._objects.all("jobs") if job["metadata"]["uid"] == _owner(pod)), None)
        index = pod["metadata"].get("annotations", {}).get(PLACE)
        if owner is not None and index is not None:

            def failed(item: Manifest) -> None:
                found = {*_numbers(item["status"].get("failedIndexes", "")), int(index)}
                item["status"]["failedIndexes"] = ",".join(map(str, sorted(found)))

            self._objects.change("jobs", owner, failed)

    def _end(self, job: Manifest, pods: list[Manifest]) -> None:
        has_failed = pods[-1]["status"]["phase"] == "Failed"
        failed: Manifest = {"reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit"}
        kind: Manifest = {"type": "Failed", **failed} if has_failed else {"type": "Complete"}
        self._status(job, pods, [{"status": "True", "lastTransitionTime": now(), **kind}], is_over=True)

    def _status(
        self, job: Manifest, pods: list[Manifest], conditions: list[Manifest], *, is_over: bool = False
    ) -> None:
        active = [pod for pod in pods if pod["status"]["phase"] in {"Pending", "Running"}]
        running = [pod for pod in active if pod["status"]["phase"] == "Running"]
        status: Manifest = {"active": len(active)} if active else {}
        if self._release >= (1, 24):
            status |= {"ready": len(running), "terminating": 0, "uncountedTerminatedPods": {}}

        def told(item: Manifest) -> None:
            known = item.setdefault("status", {})
            if pods and "startTime" not in known:
                known["startTime"] = now()
            if is_over and conditions[0]["type"] == "Complete":
                known["completionTime"] = now()
            types = [each["type"] for each in known.get("conditions", [])]
            if types != [each["type"] for each in conditions]:
                known["conditions"] = conditions
            for name in ("active", "ready"):
                known.pop(name, None)
            known |= status

        self._objects.change("jobs", job, told)

    def _create_pod(self, job: Manifest, index: int | None = None) -> None:
        meta, template = job["metadata"], job["spec"]["template"]
        if self.quota is not None and len(self._objects.all("pods", meta["namespace"])) >= self.quota:
            words = (
                f'Error creating: pods "{meta["name"]}" is forbidden: exceeded quota: pods, limited: pods={self.quota}'
            )
            self._warn(job, "FailedCreate", words)
            return
        if meta["namespace"] in self.restricted and (fault := unsafe(template["spec"])):
            words = f'pods "{meta["name"]}" is forbidden: violates PodSecurity "restricted:latest": {fault}'
            self._warn(job, "FailedCreate", f"Error creating: {words}")
            return
        spec = dict(template["spec"])
        spec["priority"] = self._priorities.get(spec.get("priorityClassName", ""), 0)
        marks = template.get("metadata", {})
        labels = marks.get("labels", {}) | {"job-name": meta["name"]}
        place = {PLACE: str(index)} if index is not None else {}
        owner = {"kind": "Job", "apiVersion": "batch/v1", "name": meta["name"], "uid": meta["uid"], "controller": True}
        middle = "" if index is None else f"{index}-"
        name = f"{meta['name']}-{middle}{next(self._numbers):05d}"
        self._objects.create(
            "pods",
            {
                "metadata": {
                    "name": name,
                    "namespace": meta["namespace"],
                    "labels": labels,
                    "annotations": marks.get("annotations", {}) | place,
                    "ownerReferences": [owner],
                },
                "spec": spec,
                "status": {"phase": "Pending", "qosClass": "BestEffort"},
            },
        )

    def _warn(self, job: Manifest, reason: str, message: str) -> None:
        meta = job["metadata"]
        about = {"kind": "Job", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
        if any(each["involvedObject"] == about for each in self._objects.all("events")):
            return
        event = {"metadata": {"name": f"{meta['name']}.{reason.lower()}", "namespace": meta["namespace"]}}
        more: Manifest = {"involvedObject": about, "reason": reason, "message": message, "type": "Warning"}
        self._objects.create("events", event | more | {"lastTimestamp": now(), "eventTime": None})

    def _schedule(self) -> None:
        waiting = [pod for pod in self._objects.all("pods") if not pod["spec"].get("nodeName") and _owner_or_free(pod)]
        for pod in sorted(waiting, key=lambda pod: -pod["spec"].get("priority", 0)):
            place, why = self._place(pod)
            if place is None:
                told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
                self._objects.change("pods", pod, lambda item, told=told: item["status"].update(conditions=[told]))  # type: ignore[misc]
                continue

            def bound(item: Manifest, place: str = place) -> None:
                item["spec"]["nodeName"] = place
                item["status"] |= {"conditions": [{"type": "PodScheduled", "status": "True"}], "startTime": now()}

            self._objects.change("pods", pod, bound)

    def _place(self, pod: Manifest) -> tuple[str | None, str]:
        wanted = self._gpus(pod)
        if wanted is None:
            return None, "waiting for dynamic resource claims: resourceclaimtemplate not found"
        used: dict[str, int] = defaultdict(int)
        why: dict[str, int] = defaultdict(int)
        for other in self._objects.all("pods"):
            if other["spec"].get("nodeName") and other["status"]["phase"] not in {"Succeeded", "Failed"}:
                used[other["spec"]["nodeName"]] += self._gpus(other) or 0
        for volume in pod["spec"].get("volumes", ()):
            name = volume.get("persistentVolumeClaim", {}).get("claimName")
            if name and name not in self.claims:
                return None, f'persistentvolumeclaim "{name}" not found'
        nodes = self._objects.all("nodes")
        for node in sorted(nodes, key=lambda node: str(node["metadata"]["name"])):
            name = node["metadata"]["name"]
            if node["spec"].get("unschedulable"):
                why["node(s) were unschedulable"] += 1
            elif misfit := _misfit(pod["spec"], node):
                why[misfit] += 1
            elif int(node["status"]["allocatable"].get(GPU, 0)) - used[name] < wanted:
                why[f"Insufficient {GPU}"] += 1
            else:
                return name, ""
        reasons = ", ".join(f"{number} {words}" for words, number in why.items())
        return None, f"0/{len(nodes)} nodes are available: {reasons}."

    def _gpus(self, pod: Manifest) -> int | None:
        """Return the GPUs of a pod; None if the template of its claim does not exist."""
        found = gpus_of(pod)
        for claim in pod["spec"].get("resourceClaims", ()):
            made = self._objects.all("resourceclaimtemplates", pod["metadata"]["namespace"])
            name = claim["resourceClaimTemplateName"]
            template = next((each for each in made if each["metadata"]["name"] == name), None)
            if template is None:
                return None
            requests = template["spec"]["spec"]["devices"]["requests"]
            found += sum(int(each.get("exactly", each)["count"]) for each in requests)
        return found

    def _start(self) -> None:
        for pod in self._objects.all("pods"):
            if pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending":
                self._start_container(pod)

    def _start_container(self, pod: Manifest) -> None:
        container = pod["spec"]["containers"][0]
        state: Manifest = {"running": {"startedAt": now()}}
        phase = "Running"
        if container["image"] in self.unpullable:
            words = f'Back-off pulling image "{container["image"]}"'
            state, phase = {"waiting": {"reason": "ImagePullBackOff", "message": words}}, "Pending"
        status = {"name": container["name"], "image": container["image"], "state": state, "restartCount": 0}

        def told(item: Manifest) -> None:
            item["status"] |= {"phase": phase, "containerStatuses": [status]}

        self._objects.change("pods", pod, told)
        if phase == "Running":
            for line in self.first_lines:
                self.write(pod, line)


def gpus_of(pod: Manifest) -> int:
    return sum(int(each.get("resources", {}).get("limits", {}).get(GPU, 0)) for each in pod["spec"]["containers"])


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


def _misfit(spec: Manifest, node: Manifest) -> str:
    """Return why a pod does not go to a node, however much is free there; empty if it does."""
    labels = node["metadata"].get("labels", {})
    for taint in node["spec"].get("taints", ()):
        if not any(_tolerates(each, taint) for each in spec.get("tolerations", ())):
            return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
    rule = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = rule["nodeSelectorTerms"] if rule else [{}]
    fits = any(all(_holds(each, labels) for each in term.get("matchExpressions", ())) for term in terms)
    if not fits or any(labels.get(name) != value for name, value in spec.get("nodeSelector", {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    return ""


def _tolerates(toleration: Manifest, taint: Manifest) -> bool:
    is_key = toleration.get("key", taint["key"]) == taint["key"]
    is_value = toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
    return bool(is_key and is_value and toleration.get("effect", taint["effect"]) == taint["effect"])


def _holds(expression: Manifest, labels: dict[str, str]) -> bool:
    value = labels.get(expression["key"])
    if expression["operator"] == "Gt":
        return value is not None and int(value) > int(expression["values"][0])
    return value in expression["values"]


def unsafe(spec: Manifest) -> str:
    """Return what the standard `restricted` has against a pod; empty for nothing."""
    pod, container = spec.get("securityContext", {}), spec["containers"][0].get("securityContext", {})
    if any("hostPath" in volume for volume in spec.get("volumes", ())):
        return "restricted volume types"
    if container.get("allowPrivilegeEscalation") is not False:
        return "allowPrivilegeEscalation != false"
    if "ALL" not in container.get("capabilities", {}).get("drop", ()):
        return "unrestricted capabilities"
    if not {**pod, **container}.get("runAsNonRoot"):
        return "runAsNonRoot != true"
    return "" if {**pod, **container}.get("seccompProfile") else "seccompProfile"


def _owner(pod: Manifest) -> str:
    owners = pod["metadata"].get("ownerReferences", [])
    return next((str(each["uid"]) for each in owners if each["kind"] == "Job"), "")


def _owner_or_free(pod: Manifest) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


def _has_ended(job: Manifest) -> bool:
    conditions = job.get("status", {}).get("conditions", [])
    return any(each["type"] in {"Complete", "Failed"} and each["status"] == "True" for each in conditions)
