"""The small, honest training behind ``temperance train`` and the studies.

Import from its files: ``job.run_job`` is the whole main job, ``predict.predict`` uses its output.
"""

__all__: list[str] = []
