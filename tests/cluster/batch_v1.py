"""Schema of the Jobs of Kubernetes' batch/v1, as far as manifests use it, by its API reference."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_FLAG = {"type": "boolean"}
_QUANTITY = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"}
_DNS_LABEL = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
_PATH = {"type": "string", "pattern": "^/"}


def _object(required: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _map(values: dict[str, Any]) -> dict[str, Any]:
    keys = {"pattern": r"^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$"}
    return {"type": "object", "propertyNames": keys, "additionalProperties": values}


_LABELS = _map({"type": "string", "pattern": "^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$", "maxLength": 63})
_REFERENCE = _object(("fieldRef",), fieldRef=_object(("fieldPath",), fieldPath=_TEXT, apiVersion=_TEXT))
_VARIABLE = _object(
    ("name",), name={"type": "string", "pattern": "^[-._a-zA-Z][-._a-zA-Z0-9]*$"}, value=_TEXT, valueFrom=_REFERENCE
)
_CONTAINER = _object(
    ("name", "image"),
    name=_DNS_LABEL,
    image=_TEXT,
    command=_list(_TEXT),
    args=_list(_TEXT),
    env=_list(_VARIABLE),
    workingDir=_TEXT,
    imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    resources=_object(
        limits=_map(_QUANTITY), requests=_map(_QUANTITY), claims=_list(_object(("name",), name=_DNS_LABEL))
    ),
    volumeMounts=_list(_object(("name", "mountPath"), name=_DNS_LABEL, mountPath=_PATH, readOnly=_FLAG, subPath=_TEXT)),
    securityContext=_object(
        privileged=_FLAG,
        readOnlyRootFilesystem=_FLAG,
        allowPrivilegeEscalation=_FLAG,
        runAsUser=_COUNT,
        runAsGroup=_COUNT,
        capabilities=_object(add=_list(_TEXT), drop=_list(_TEXT)),
    ),
)
_VOLUME = _object(
    ("name",),
    name=_DNS_LABEL,
    hostPath=_object(("path",), path=_PATH, type=_TEXT),
    persistentVolumeClaim=_object(("claimName",), claimName=_TEXT, readOnly=_FLAG),
    emptyDir=_object(medium={"enum": ["", "Memory"]}, sizeLimit=_QUANTITY),
)
_EXPRESSION = _object(
    ("key", "operator"), key=_TEXT, operator={"enum": ["In", "NotIn", "Exists", "Gt", "Lt"]}, values=_list(_TEXT)
)
_NODES = _object(("nodeSelectorTerms",), nodeSelectorTerms=_list(_object(matchExpressions=_list(_EXPRESSION))))
_POD = _object(
    ("containers", "restartPolicy"),
    restartPolicy={"enum": ["Never", "OnFailure"]},
    priorityClassName=_TEXT,
    activeDeadlineSeconds={"type": "integer", "minimum": 1},
    terminationGracePeriodSeconds=_COUNT,
    hostname=_DNS_LABEL,
    hostNetwork=_FLAG,
    hostPID=_FLAG,
    hostIPC=_FLAG,
    hostAliases=_list(_object(("ip",), ip=_TEXT, hostnames=_list(_TEXT))),
    dnsPolicy={"enum": ["ClusterFirst", "Default", "None"]},
    dnsConfig=_object(nameservers=_list(_TEXT), searches=_list(_TEXT)),
    securityContext=_object(
        supplementalGroups=_list(_COUNT),
        sysctls=_list(_object(("name", "value"), name=_TEXT, value=_TEXT)),
        runAsNonRoot=_FLAG,
        runAsUser=_COUNT,
        runAsGroup=_COUNT,
        fsGroup=_COUNT,
        seccompProfile=_object(("type",), type=_TEXT),
    ),
    nodeSelector=_map(_TEXT),
    tolerations=_list(
        _object(key=_TEXT, operator={"enum": ["Exists", "Equal"]}, value=_TEXT, effect={"enum": ["NoSchedule"]})
    ),
    imagePullSecrets=_list(_object(("name",), name=_TEXT)),
    serviceAccountName=_TEXT,
    runtimeClassName=_TEXT,
    automountServiceAccountToken=_FLAG,
    resourceClaims=_list(
        _object(("name", "resourceClaimTemplateName"), name=_DNS_LABEL, resourceClaimTemplateName=_TEXT)
    ),
    affinity=_object(nodeAffinity=_object(requiredDuringSchedulingIgnoredDuringExecution=_NODES)),
    containers={**_list(_CONTAINER), "minItems": 1},
    volumes=_list(_VOLUME),
)
_METADATA = _object(name=_DNS_LABEL, namespace=_DNS_LABEL, labels=_LABELS, annotations=_map(_TEXT))
JOB = _object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "batch/v1"},
    kind={"const": "Job"},
    metadata={**_METADATA, "required": ["name"]},
    spec=_object(
        ("template",),
        backoffLimit={"const": 0},
        completionMode={"const": "Indexed"},
        completions=_COUNT,
        parallelism=_COUNT,
        backoffLimitPerIndex=_COUNT,
        suspend=_FLAG,
        template=_object(("spec",), metadata=_METADATA, spec=_POD),
    ),
)
