"""JSON schemas of the job files that we render: the fields that we use, and no others.

They are written by hand from the documentation of each kind, so a field that is misspelt, misplaced
or of another type is refused. They are not the schemas of a cluster: a value that only a cluster
knows to be wrong passes.
"""

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "array", "items": TEXT, "minItems": 1}


def closed(*required: str, **properties: Schema) -> Schema:
    """Return the schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def several(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def kind(version: str, name: str, spec: Schema) -> Schema:
    """Return the schema of a Kubernetes object."""
    labels = {"type": "object", "additionalProperties": TEXT}
    return closed(
        "apiVersion",
        "kind",
        "metadata",
        "spec",
        apiVersion=one_of(version),
        kind=one_of(name),
        metadata=closed("name", name=TEXT, labels=labels),
        spec=spec,
    )


RESOURCES = closed(limits={"type": "object", "additionalProperties": COUNT})

CONTAINER = closed(
    "name",
    "image",
    name=TEXT,
    image=TEXT,
    command=TEXTS,
    args=TEXTS,
    resources=RESOURCES,
    terminationMessagePolicy=one_of("File", "FallbackToLogsOnError"),
    volumeMounts=several(
        closed("name", "mountPath", name=TEXT, mountPath=TEXT, subPath=TEXT, readOnly=FLAG)
    ),
)

TOLERATION = closed(
    key=TEXT,
    operator=one_of("Exists", "Equal"),
    effect=one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
    tolerationSeconds=COUNT,
)

VOLUME = closed(
    "name",
    name=TEXT,
    emptyDir=closed(medium=one_of("", "Memory")),
    secret=closed("secretName", secretName=TEXT, defaultMode=COUNT),
)


def pod(*policies: str) -> Schema:
    """Return the schema of a pod's template with one of these restart policies."""
    return closed(
        "spec",
        spec=closed(
            "containers",
            *(["restartPolicy"] if policies else []),
            restartPolicy=one_of(*policies),
            terminationGracePeriodSeconds=COUNT,
            tolerations=several(TOLERATION),
            containers=several(CONTAINER),
            volumes=several(VOLUME),
        ),
    )


JOB = closed(
    "template",
    parallelism=COUNT,
    completions=COUNT,
    completionMode=one_of("Indexed"),
    backoffLimit={"type": "integer", "minimum": 0, "maximum": 2**31 - 1},
    podReplacementPolicy=one_of("Failed"),  # all that goes with a podFailurePolicy
    successPolicy=closed("rules", rules=several(closed(succeededCount=COUNT))),
    podFailurePolicy=closed(
        "rules",
        rules=several(
            closed(
                "action",
                action=one_of("Ignore", "FailJob", "FailIndex", "Count"),
                onPodConditions=several(closed("type", "status", type=TEXT, status=TEXT)),
                onExitCodes=closed(
                    "operator",
                    "values",
                    containerName=TEXT,
                    operator=one_of("In", "NotIn"),
                    values={
                        "type": "array",
                        "items": {"type": "integer", "minimum": 1, "maximum": 255},
                        "uniqueItems": True,
                    },
                ),
            )
        ),
    ),
    template=pod("Never"),  # A podFailurePolicy takes no other.
)

JOBSET_SPEC = closed(
    "replicatedJobs",
    network=closed(enableDNSHostnames=FLAG, publishNotReadyAddresses=FLAG),
    failurePolicy=closed(
        maxRestarts=COUNT,
        rules=several(
            closed(
                "name",
                "action",
                name=TEXT,
                action=one_of("FailJobSet", "RestartJobSet"),
                onJobFailureReasons=several(
                    one_of("BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy")
                ),
            )
        ),
    ),
    replicatedJobs=several(
        closed(
            "name",
            "template",
            name=TEXT,
            replicas=COUNT,
            template=closed("spec", metadata=closed(labels={"type": "object"}), spec=JOB),
        )
    ),
)

JOBSET = kind("jobset.x-k8s.io/v1alpha2", "JobSet", JOBSET_SPEC)

RUNTIME = kind(
    "trainer.kubeflow.org/v1alpha1",
    "TrainingRuntime",
    closed(
        "mlPolicy",
        "template",
        mlPolicy=closed(numNodes=COUNT, torch=closed()),
        template=closed("spec", spec=JOBSET_SPEC),
    ),
)

TRAINJOB = kind(
    "trainer.kubeflow.org/v1alpha1",
    "TrainJob",
    closed(
        "runtimeRef",
        runtimeRef=closed("name", apiGroup=TEXT, kind=one_of("TrainingRuntime"), name=TEXT),
        trainer=closed(
            numNodes=COUNT,
            numProcPerNode=COUNT,
            image=TEXT,
            command=TEXTS,
            args=TEXTS,
            resourcesPerNode=RESOURCES,
        ),
    ),
)

LWS = kind(
    "leaderworkerset.x-k8s.io/v1",
    "LeaderWorkerSet",
    closed(
        "leaderWorkerTemplate",
        replicas=COUNT,
        startupPolicy=one_of("LeaderCreated", "LeaderReady"),
        leaderWorkerTemplate=closed(
            "workerTemplate",
            "size",
            size=COUNT,
            restartPolicy=one_of("None", "RecreateGroupOnPodRestart"),
            workerTemplate=pod(),  # Its pods are of stateful sets, which start them for ever.
        ),
    ),
)

VOLCANO = kind(
    "batch.volcano.sh/v1alpha1",
    "Job",
    closed(
        "tasks",
        schedulerName=one_of("volcano"),
        minAvailable=COUNT,
        minSuccess={"type": "integer", "minimum": 1},
        maxRetry=COUNT,
        plugins=closed(svc={"type": "array", "items": TEXT}, env={"type": "array", "items": TEXT}),
        policies=several(
            closed(
                "action",
                exitCode={"type": "integer", "not": {"const": 0}},
                action=one_of("AbortJob", "RestartJob", "RestartTask", "TerminateJob"),
            )
        ),
        tasks=several(closed("name", "template", name=TEXT, replicas=COUNT, template=pod("Never"))),
    ),
)

_SERVICE = closed(
    "image",
    image=TEXT,
    init=FLAG,
    shm_size=TEXT,
    stop_grace_period=TEXT,
    restart=TEXT,
    secrets=TEXTS,
    command=TEXTS,
)

COMPOSE: Schema = {
    **closed(
        "services",
        name=TEXT,
        services={"type": "object", "additionalProperties": _SERVICE},
        secrets={"type": "object", "additionalProperties": closed("file", file=TEXT)},
    ),
    "patternProperties": {"^x-": {}},
}

SKYPILOT = closed(
    "run",
    name=TEXT,
    num_nodes=COUNT,
    resources=closed(
        accelerators=TEXT,
        image_id={"type": "string", "pattern": "^docker:"},
        job_recovery=closed(max_restarts_on_errors=COUNT),
    ),
    file_mounts={"type": "object", "additionalProperties": TEXT},
    run=TEXT,
)

SCHEMAS: dict[str, tuple[Schema, ...]] = {
    "jobset": (JOBSET,),
    "trainjob": (RUNTIME, TRAINJOB),
    "lws": (LWS,),
    "volcano": (VOLCANO,),
    "compose": (COMPOSE,),
    "skypilot": (SKYPILOT,),
}
"""What the documents of each job file are, in order."""


def of_definitions(documents: list[Any]) -> dict[tuple[str, str], Schema]:
    """The schemas of a cluster's own CustomResourceDefinitions, by version and kind; a field that
    they do not name is refused.
    """
    found = {}
    for document in documents:
        if isinstance(document, dict) and document.get("kind") == "CustomResourceDefinition":
            spec = document["spec"]
            for version in spec["versions"]:
                schema = _closed_all(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}  # Which a cluster knows.
                found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def _closed_all(node: Any) -> Any:
    """Kubernetes' schema as JSON's: its own words translated, every object closed."""
    if isinstance(node, list):
        return [_closed_all(one) for one in node]
    if not isinstance(node, dict):
        return node
    schema = {name: _closed_all(value) for name, value in node.items()}
    if schema.pop("x-kubernetes-int-or-string", False) is True:
        schema.pop("anyOf", None)
        schema["type"] = ["integer", "string"]
    free = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict) and not free:
        schema["additionalProperties"] = False
    return schema
