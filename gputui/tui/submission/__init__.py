"""The form that submits a job: its fields, what fills them, and what would become of the job."""
