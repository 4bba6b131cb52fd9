"""kubernetes.py FOLDER: its manifests fit the schemas of Kubernetes, and what stands in them twice is the same."""

import pathlib
import sys

import kubernetes_validate
import yaml

VERSIONS = ["1.31", kubernetes_validate.latest_version()]  # the oldest that train.yaml names, the newest known


def objects_of(path):
    return {each["kind"]: each for each in yaml.safe_load_all(path.read_text())}


def validate(path):
    for each in yaml.safe_load_all(path.read_text()):
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)


def expect(what, is_so):
    if not is_so:
        sys.exit(f"error: {what}")


def option(args, name):
    (found,) = [arg.split("=", 1)[1] for arg in args if arg.startswith(f"--{name}=")]
    return found


def check_train(objects):
    job, service, claim = objects["Job"], objects["Service"], objects["PersistentVolumeClaim"]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    args, name = container["args"], job["metadata"]["name"]
    (nodes,) = [each["value"] for each in container["env"] if each["name"] == "NODES"]
    expect("completions, parallelism and NODES differ", spec["completions"] == spec["parallelism"] == int(nodes))
    expect("the pods are not numbered", spec["completionMode"] == "Indexed")
    expect("subdomain is not the Service's name", pod["subdomain"] == service["metadata"]["name"])
    expect("the Service selects other pods", service["spec"]["selector"] == {"job-name": name})
    expect("the Service is not headless", service["spec"]["clusterIP"] == "None")
    expect("the Service hides pods that are not ready", service["spec"]["publishNotReadyAddresses"])
    expect("the endpoint is not pod 0", option(args, "master-addr") == f"{name}-0.{pod['subdomain']}")
    grace = pod["terminationGracePeriodSeconds"] - int(option(args, "shutdown-timeout"))
    expect("the workers' grace leaves less than 5 s of the pod's", grace >= 5)
    (volume,) = [each for each in pod["volumes"] if "persistentVolumeClaim" in each]
    expect("the volume is another", volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"])
    rules = [each["onExitCodes"] for each in spec["podFailurePolicy"]["rules"] if "onExitCodes" in each]
    expect("a rule is for another container", all(each["containerName"] == container["name"] for each in rules))
    expect("a pod that has stopped at a step is counted", any(75 in each["values"] for each in rules))
    pods = {"podSelector": {"matchLabels": {"job-name": name}}}
    expect("the policy is not for the traffic of this job's pods",
           objects["NetworkPolicy"]["spec"] == {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]})


def check_rendezvous(objects):
    service, deployment = objects["Service"], objects["Deployment"]
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    (port,) = container["ports"]
    expect("the port differs", option(container["args"], "port") == str(port["containerPort"]))
    expect("the Service's port differs", service["spec"]["ports"][0]["port"] == port["containerPort"])
    expect("the Service's target differs", service["spec"]["ports"][0]["targetPort"] == port["name"])
    labels = pod["metadata"]["labels"]
    expect("the Service selects other pods", service["spec"]["selector"] == labels)
    expect("the Deployment selects other pods", deployment["spec"]["selector"]["matchLabels"] == labels)
    expect("two daemons at once",
           deployment["spec"]["replicas"] == 1 and deployment["spec"]["strategy"]["type"] == "Recreate")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        expect(f"{probe} asks elsewhere", container[probe]["httpGet"] == {"path": "/healthz", "port": port["name"]})
    policy = objects["NetworkPolicy"]["spec"]
    (rule,) = policy["ingress"]
    expect("the policy selects other pods", policy["podSelector"] == {"matchLabels": labels})
    expect("the daemon may connect", policy["policyTypes"] == ["Ingress", "Egress"] and "egress" not in policy)
    expect("another port is open", rule["ports"] == [{"port": port["name"]}])
    return rule["from"]


def check_shut(objects):
    (pod,) = [each["spec"]["template"]["spec"] for each in objects.values() if "template" in each["spec"]]
    expect("a pod has variables of services", pod["enableServiceLinks"] is False)
    expect("a pod has a token of the cluster", pod["automountServiceAccountToken"] is False)
    expect("a pod shares namespaces with its node", not any(name.startswith("host") for name in pod))
    user = pod["securityContext"]
    ids = [user[name] for name in ("runAsUser", "runAsGroup", "fsGroup")]
    expect("a pod runs as root", user["runAsNonRoot"] is True and all(each > 0 for each in ids))
    expect("a pod may make any system call", user["seccompProfile"] == {"type": "RuntimeDefault"})
    (container,) = pod["containers"]
    expect("a container has more rights than it needs",
           container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                            "capabilities": {"drop": ["ALL"]}})
    check_token(pod, container)


def check_token(pod, container):
    """The token is a file that root and the pod's group can read, and the kubelet starts no pod without it."""
    (volume,) = [each for each in pod["volumes"] if "secret" in each]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == volume["name"]]
    secret = volume["secret"]
    expect("another secret, or one that may be missing", secret == {"secretName": "ddprun-token", "defaultMode": 0o440})
    expect("the secret can be written to", mount["readOnly"] is True)
    expect("the token is elsewhere", option(container["args"], "token-file") == f"{mount['mountPath']}/token")
    expect("a variable is a secret", not any("valueFrom" in each for each in container.get("env", [])))


folder = pathlib.Path(sys.argv[1])
manifests = {path.stem: path for path in folder.glob("*.yaml")}
expect(f"{folder} has other manifests than are checked here", set(manifests) == {"train", "rendezvous"})
for path in manifests.values():
    validate(path)
train, rendezvous = (objects_of(manifests[name]) for name in ("train", "rendezvous"))
for objects in (train, rendezvous):
    check_shut(objects)
check_train(train)
(clients,) = check_rendezvous(rendezvous)
labels = train["Job"]["spec"]["template"]["metadata"]["labels"]
expect("the daemon's policy keeps the job's pods out",
       labels.items() >= clients["podSelector"]["matchLabels"].items() > set())
