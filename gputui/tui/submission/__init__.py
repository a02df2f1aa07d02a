"""The form that submits a job: its fields, drafts to fill them, and a preview of the job."""
