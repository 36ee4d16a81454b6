"""PostgreSQL with pgvector: the embedded server, collections of chunks, and the engine.

`server.EmbeddedPostgres` supervises the packaged server, `dsn.check_dsn` looks at somebody
else's, `store.CollectionStore` keeps collections in either, `sync.open_store` is the store
for callers without an event loop, and `engine.create` puts it behind the engine protocol.
"""
