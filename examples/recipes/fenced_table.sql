CREATE TABLE account (
    id    BIGINT PRIMARY KEY,
    owner TEXT   NOT NULL,
    fence BIGINT NOT NULL DEFAULT 0
)
