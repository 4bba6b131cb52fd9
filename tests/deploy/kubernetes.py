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


def check_shut(objects):
    for each in objects.values():
        pod = each["spec"].get("template", {}).get("spec")
        if pod is None:
            continue
        user = pod["securityContext"]
        expect("a pod runs as root", user["runAsNonRoot"] and user["runAsUser"] > 0)
        expect("a pod has variables of services", pod["enableServiceLinks"] is False)
        for container in pod["containers"]:
            security = container["securityContext"]
            shut = not security["allowPrivilegeEscalation"] and security["readOnlyRootFilesystem"]
            expect("a container has more rights than it needs", shut and security["capabilities"] == {"drop": ["ALL"]})


folder = pathlib.Path(sys.argv[1])
manifests = {path.stem: path for path in folder.glob("*.yaml")}
expect(f"{folder} has other manifests than are checked here", set(manifests) == {"train", "rendezvous"})
for path in manifests.values():
    validate(path)
check_train(objects_of(manifests["train"]))
check_rendezvous(objects_of(manifests["rendezvous"]))
for path in manifests.values():
    check_shut(objects_of(path))
