"""TinyDB's table over the journal: a change costs what it touches, and nothing handed out shares memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from tinydb import TinyDB
from tinydb.queries import QueryLike
from tinydb.table import Document as TinyDocument
from tinydb.table import Table
from tinydb.utils import LRUCache

from gputui.store.journal import Document
from gputui.store.replica import JOBS
from gputui.store.storage import JournalStorage


class OwnDocument(TinyDocument):
    """A deep copy: whoever changes it changes nothing else."""

    def __init__(self, value: Mapping[str, Any], doc_id: int) -> None:
        super().__init__(copy.deepcopy(dict(value)), doc_id)


class NoQueryCache(LRUCache[Any, Any]):
    """Remembers nothing: the query cache would never notice what other processes write."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


class JournalTable(Table):
    """A table whose every change is one line of the journal, or part of a longer transaction."""

    document_class = OwnDocument
    _next_id: int | None  # type: ignore[assignment]  # declared as None alone
    query_cache_class = NoQueryCache

    def put(self, doc_id: int, document: Document) -> None:
        """Store the document under this id, in place of the one before."""
        with self._journal.transaction():
            self._journal.stage(self.name, {str(doc_id): document})

    def insert(self, document: Mapping[str, Any]) -> int:
        """Insert a document; its id."""
        with self._journal.transaction():
            self._next_id = None
            return super().insert(document)

    def insert_multiple(self, documents: Iterable[Mapping[str, Any]]) -> list[int]:
        """Insert documents, all or none; their ids."""
        with self._journal.transaction():
            self._next_id = None
            return super().insert_multiple(documents)

    def update(
        self,
        fields: Mapping[str, Any] | Callable[[MutableMapping[str, Any]], None],
        cond: QueryLike | None = None,
        doc_ids: Iterable[int] | None = None,
    ) -> list[int]:
        """Update documents; their ids."""
        with self._journal.transaction():
            return super().update(fields, doc_ids=self._resolved(cond, doc_ids))

    def remove(self, cond: QueryLike | None = None, doc_ids: Iterable[int] | None = None) -> list[int]:
        """Remove documents; their ids."""
        with self._journal.transaction():
            return super().remove(None if cond is None else cond, self._resolved(cond, doc_ids))

    def upsert(self, document: Mapping[str, Any], cond: QueryLike | None = None) -> list[int]:
        """Update documents, or insert one where there are none; their ids."""
        with self._journal.transaction():
            return super().upsert(document, cond)

    @property
    def _journal(self) -> JournalStorage:
        assert isinstance(self._storage, JournalStorage)
        return self._storage

    def _resolved(self, cond: QueryLike | None, doc_ids: Iterable[int] | None) -> Iterable[int] | None:
        """The ids meant by a condition, so that only those documents are copied."""
        if cond is None or doc_ids is not None:
            return doc_ids
        return [int(key) for key, document in self._journal.table(self.name).items() if cond(document)]

    def _get_next_id(self) -> int:
        if self.name == JOBS:
            return self._journal.take_id()
        if self._next_id is None:  # at the beginning of every insertion: others may have written since the last
            self._next_id = max(map(int, self._journal.table(self.name)), default=0) + 1
        self._next_id += 1
        return self._next_id - 1

    def _update_table(self, updater: Callable[[dict[int, Mapping[str, Any]]], None]) -> None:
        with self._journal.transaction():
            view = TouchedView(self._journal.table(self.name))
            updater(view)  # type: ignore[arg-type]  # TinyDB asks only for a MutableMapping
            self._journal.stage(self.name, view.changes())


class TouchedView(MutableMapping[int, Document]):
    """A table under change: documents are copied when they are touched."""

    def __init__(self, base: Mapping[str, Document]) -> None:
        self._base = base
        self._touched: dict[int, Document | None] = {}

    def changes(self) -> dict[str, Document | None]:
        """What was touched, by key; None: removed."""
        return {str(doc_id): document for doc_id, document in self._touched.items()}

    def __getitem__(self, doc_id: int) -> Document:
        if doc_id not in self._touched:
            self._touched[doc_id] = copy.deepcopy(self._base[str(doc_id)])
        document = self._touched[doc_id]
        if document is None:
            raise KeyError(doc_id)
        return document

    def __setitem__(self, doc_id: int, document: Document) -> None:
        self._touched[doc_id] = copy.deepcopy(document)

    def __delitem__(self, doc_id: int) -> None:
        if doc_id not in self:
            raise KeyError(doc_id)
        self._touched[doc_id] = None

    def __contains__(self, doc_id: object) -> bool:
        if doc_id in self._touched:
            return self._touched[doc_id] is not None
        return str(doc_id) in self._base

    def __iter__(self) -> Iterator[int]:
        ids = dict.fromkeys(map(int, self._base)) | dict.fromkeys(self._touched)
        return iter([doc_id for doc_id in ids if doc_id in self])

    def __len__(self) -> int:
        return sum(1 for _ in self)


class JournalDB(TinyDB):
    """TinyDB with these tables."""

    table_class = JournalTable
    default_storage_class = JournalStorage  # type: ignore[assignment]  # declared as the one it is by default
