"""Actions of users and operators (`actions.Actions`): checked, written into the store and audited in one transaction.

Only the scheduler carries them out.
"""
