"""What processes that tests start afresh run: they find this module by its name, which a test's own file has not."""


def count_rows(loader, queue):
    queue.put(sum(len(batch["x"]) for batch in loader))
