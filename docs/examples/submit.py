from tessera.client import submit

worker = {
    "name": "worker",
    "resources": {"cpu_milli": 4000, "memory_bytes": 16 * 2**30, "gpus": 1},
    "template": {"image": "registry.example.com/train:1", "command": ["python", "train.py"]},
}
job = submit({"name": "nightly", "queue": "default", "roles": [worker]}, key="nightly-2026-11-21", tenant="demo")
print(job.job_id, "admitted" if job.admitted else "stored, not answered yet")
