"""`docker run` lines of the images' own documentation: options, image, command.

Tokens, versions and paths are shortened; option names, their spelling and their order are the documentation's.

gputui differs from `docker run` on purpose in these, and in nothing else that `docker inspect` shows:

| docker run | gputui |
|---|---|
| `--rm`: removed by the engine as it ends | removed once its log is saved, so `AutoRemove` is false |
| `--restart`: started again by the engine | never; `--retries` runs a failed job again in a new container |
| `-i`, `-t`, `-d`: terminal and standard streams | none; output is kept and followed by `gputui logs` |
| no init unless `--init` | an init unless `--init=false` |
| json-file log without rotation | rotated as the settings say, unless `--log-opt` says otherwise |
| `--gpus all` | the UUIDs of the GPUs that the scheduler chose |
| `--name`, labels | the job's name; the container is named after the attempt and has gputui's labels too |
| `-e NVIDIA_VISIBLE_DEVICES` and `-e CUDA_VISIBLE_DEVICES` choose GPUs | left out with a note |
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DockerLine:
    """Line of options, image and command, apart from `docker run`."""

    name: str
    options: str
    image: str
    command: str = ""


_NGC = "--ipc=host --ulimit memlock=-1 --ulimit stack=67108864"
_HF = "-v /tmp/hf:/root/.cache/huggingface"

LINES = (
    DockerLine("smoke test", "--rm --gpus all", "nvidia/cuda:12.4.1-base-ubuntu22.04", "nvidia-smi"),
    DockerLine("smoke test, old runtime", "--rm --runtime=nvidia --gpus all", "ubuntu", "nvidia-smi"),
    DockerLine("smoke test, utility only", "--rm --gpus 2,capabilities=utility", "nvidia/cuda", "nvidia-smi -L"),
    DockerLine(
        "CUDA samples", "--rm --gpus '\"device=0\"'", "nvcr.io/nvidia/k8s/cuda-sample:nbody", "nbody -benchmark"
    ),
    DockerLine("NGC PyTorch", f"--gpus all -it --rm {_NGC} -v /tmp/data:/data -w /workspace", "nvcr.io/nvidia/pytorch"),
    DockerLine("NGC TensorFlow", f"--gpus all {_NGC} -it --rm -v $PWD:/tmp/ws", "nvcr.io/nvidia/tensorflow", "bash"),
    DockerLine(
        "Triton server",
        "--gpus=1 --rm -p8000:8000 -p8001:8001 -p8002:8002 -v/tmp/models:/models --shm-size=1g --ulimit memlock=-1",
        "nvcr.io/nvidia/tritonserver:24.05-py3",
        "tritonserver --model-repository=/models",
    ),
    DockerLine("Triton SDK", "-it --rm --net=host --gpus all", "nvcr.io/nvidia/tritonserver:24.05-py3-sdk"),
    DockerLine(
        "vLLM",
        f"--runtime nvidia --gpus all {_HF} --env 'HUGGING_FACE_HUB_TOKEN=<secret>' -p 8000:8000 --ipc=host",
        "vllm/vllm-openai:latest",
        "--model mistralai/Mistral-7B-v0.1",
    ),
    DockerLine("TGI", "--gpus all --shm-size 1g -p 8080:80 -v $PWD/data:/data", "ghcr.io/hf/tgi:2.0", "--model-id m"),
    DockerLine(
        "SGLang",
        f"--gpus all --shm-size 32g -p 30000:30000 {_HF} --env HF_TOKEN=t --ipc=host",
        "lmsysorg/sglang:latest",
        "python3 -m sglang.launch_server --host 0.0.0.0 --port 30000",
    ),
    DockerLine(
        "TensorRT-LLM",
        "--rm -it --ipc host --gpus all --ulimit memlock=-1 --ulimit stack=67108864 -p 8000:8000",
        "nvcr.io/nvidia/tensorrt-llm/release",
        "trtllm-serve m --host 0.0.0.0",
    ),
    DockerLine(
        "docker-stacks notebook",
        "-it --rm -p 10000:8888 --gpus all --user root -e NB_USER=me -e CHOWN_HOME=yes -w /home/me -v /tmp:/home/me/w",
        "quay.io/jupyter/pytorch-notebook:cuda12-latest",
        "start-notebook.py --IdentityProvider.token=",
    ),
    DockerLine(
        "JupyterHub single-user",
        "-d --gpus 1 -h hub-alice --group-add users -e GRANT_SUDO=yes -e JUPYTERHUB_API_TOKEN=t",
        "quay.io/jupyter/base-notebook",
        "jupyterhub-singleuser",
    ),
    DockerLine(
        "RAPIDS",
        "--gpus all --pull always --rm -it --shm-size=1g --ulimit memlock=-1 -p 8888:8888 -p 8787:8787 -p 8786:8786",
        "rapidsai/notebooks:26.02-cuda13-py3.13",
    ),
    DockerLine(
        "ComfyUI",
        "-d --name comfyui --gpus all -p 8188:8188 -v /tmp/storage:/root -e CLI_ARGS='--fast'",
        "yanwk/comfyui-boot:cu124-slim",
    ),
    DockerLine("ollama", "-d --gpus=all -v ollama:/root/.ollama -p 11434:11434 --name ollama", "ollama/ollama"),
    DockerLine(
        "Open WebUI",
        "-d -p 3000:8080 --gpus all --add-host=host.docker.internal:host-gateway -v open-webui:/app/backend/data "
        "--name open-webui --restart always",
        "ghcr.io/open-webui/open-webui:cuda",
    ),
    DockerLine(
        "A1111 webui",
        "-d --gpus all --shm-size=1g -p 7860:7860 --stop-signal SIGKILL -v $PWD/data:/data --tmpfs /tmp:exec",
        "sd-webui:latest",
        "--listen --medvram",
    ),
    DockerLine("InvokeAI", "--runtime=nvidia --gpus=all --publish 9090:9090", "ghcr.io/invoke-ai/invokeai"),
    DockerLine(
        "Nsight Systems",
        "--rm -it --gpus=all --cap-add=SYS_ADMIN --security-opt seccomp=unconfined -v $PWD:/out",
        "nvcr.io/nvidia/cuda",
        "nsys profile -o /out/r ./app",
    ),
    DockerLine("Nsight Compute", "--rm --gpus all --privileged --pid=host", "nvcr.io/nvidia/cuda", "ncu ./app"),
    DockerLine(
        "DCGM exporter",
        "-d --rm --gpus all --net host --cap-add SYS_ADMIN",
        "nvcr.io/nvidia/k8s/dcgm-exporter:3.3.5-3.4.1-ubuntu22.04",
        "-f /etc/dcgm-exporter/dcp-metrics-included.csv",
    ),
    DockerLine(
        "torchrun with RDMA",
        "--gpus all --network host --ipc host --device=/dev/infiniband --ulimit memlock=-1 --cap-add=IPC_LOCK "
        "--ulimit nofile=1048576:1048576 -e NCCL_IB_HCA=mlx5 -e NCCL_DEBUG=INFO",
        "nvcr.io/nvidia/pytorch",
        "torchrun --nnodes 2 --nproc-per-node 8 train.py",
    ),
    DockerLine(
        "DeepSpeed",
        "-d -it --name ds --gpus all --network=host --ipc=host --privileged -v /tmp:/job --shm-size 64gb",
        "deepspeed/deepspeed",
        "sleep infinity",
    ),
    DockerLine(
        "NeMo",
        "--gpus all -it --rm --shm-size=16g --ulimit memlock=-1 --ulimit stack=67108864 -p 8888:8888 -p 6006:6006 "
        "--device=/dev/snd -v $PWD:/workspace",
        "nvcr.io/nvidia/nemo:24.05",
    ),
    DockerLine(
        "Isaac Sim",
        "--name isaac-sim --entrypoint bash -it --runtime=nvidia --gpus all -e ACCEPT_EULA=Y --rm --network=host "
        "-e PRIVACY_CONSENT=Y -v /tmp/isaac/cache/kit:/isaac-sim/kit/cache:rw -v /tmp/logs:/root/.nvidia-omniverse",
        "nvcr.io/nvidia/isaac-sim:4.5.0",
    ),
    DockerLine(
        "Isaac Lab",
        "--entrypoint '' --rm --gpus all --network=host -e NVIDIA_DRIVER_CAPABILITIES=all -e OMNI_KIT_ALLOW_ROOT=1 "
        "--mount type=bind,source=/tmp,target=/workspace/isaaclab/source --mount type=volume,source=kit,target=/kit",
        "nvcr.io/nvidia/isaac-lab",
        "python train.py --headless",
    ),
    DockerLine(
        "NVENC",
        "--rm --gpus all -e NVIDIA_DRIVER_CAPABILITIES=video,compute,utility -v $PWD:/w -w /w --entrypoint='ffmpeg'",
        "jrottenberg/ffmpeg:nvidia",
        "-hwaccel cuda -i in.mp4 -c:v h264_nvenc out.mp4",
    ),
    DockerLine(
        "NVENC by request", '--rm --gpus \'"device=0","capabilities=compute,video,utility"\'', "ffmpeg", "-version"
    ),
    DockerLine("whisper", "-d --gpus all -p 9000:9000 -e ASR_MODEL=base -v $PWD/c:/root/.cache:z", "asr:latest-gpu"),
    DockerLine("LocalAI", "-ti --name local-ai -p 8080:8080 --gpus all -v $PWD/models:/models", "localai/localai"),
    DockerLine(
        "llama.cpp server",
        "--gpus all -v /tmp/models:/models -p 8000:8000",
        "ghcr.io/ggml-org/llama.cpp:server-cuda",
        "-m /models/7B.gguf --port 8000 --host 0.0.0.0 --n-gpu-layers 99",
    ),
    DockerLine(
        "text-generation-webui",
        "-d -e EXTRA_LAUNCH_ARGS='--listen --verbose' --gpus all -p 7860:7860 -p 5000:5000 -p 127.0.0.1:5005:5005/udp",
        "atinoda/text-generation-webui",
    ),
    DockerLine(
        "MONAI",
        f"--gpus all --rm -ti {_NGC} --net=host -v $PWD:/workspace/data --user 1000:1000",
        "projectmonai/monai:latest",
    ),
    DockerLine(
        "Merlin",
        f"--gpus all --rm -it -p 8888:8888 -p 8797:8787 -p 8796:8786 {_NGC} --cap-add SYS_NICE -v /tmp:/root/data",
        "nvcr.io/nvidia/merlin/merlin-pytorch",
        "/bin/bash",
    ),
    DockerLine(
        "a service with limits",
        "-d --gpus 1 --cpus 1.5 --cpuset-cpus 0 -m 8g --memory-reservation 1g --pids-limit 500 --oom-score-adj 100 "
        "--read-only --cap-drop ALL --security-opt no-new-privileges --dns 10.0.0.53 --dns-search example.org "
        "--health-cmd 'curl -f http://localhost || exit 1' --health-interval 30s --health-timeout 500ms "
        "--stop-timeout 60 --sysctl net.core.somaxconn=1024 --log-opt max-size=10m -l team=vision --expose 9000 -P "
        "--uts host",
        "server",
        "serve",
    ),
    DockerLine(
        "a service in a network",
        "-d --gpus 1 --network lines --network-alias db --ip 172.31.77.9 --hostname db --init=false --no-healthcheck "
        "--userns host --cgroupns private --group-add 44 --device-cgroup-rule 'c 10:* rwm'"
        " --memory 1g --memory-swap -1",
        "server",
    ),
)
