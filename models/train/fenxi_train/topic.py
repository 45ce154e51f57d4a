"""Samples of many routers, from a topic of Kafka; needs the package confluent-kafka.

A message is what a frame of the learn socket is, and has the name of its router.
"""

from . import wire
from .errors import UNAVAILABLE, USAGE, Refusal


def frames(brokers, topic, options, say):
    """The frames of a topic from now on, without end."""
    try:
        import confluent_kafka
    except ImportError:
        text = "--kafka: needs the package confluent-kafka: pip install 'fenxi-train[kafka]'"
        raise Refusal(text, UNAVAILABLE) from None
    # Tuners of one group share the messages, so a second one stands by.
    given = {"group.id": f"fenxi-tune.{topic}", "auto.offset.reset": "latest", **options}
    try:
        consumer = confluent_kafka.Consumer({**given, "bootstrap.servers": brokers})
    except confluent_kafka.KafkaException as error:
        raise Refusal(f"--kafka: {error.args[0].str()}", USAGE) from None
    try:
        consumer.subscribe([topic])
        while True:
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error():
                say("kafka", f"{brokers}: {message.error().str()}; tries again")
                continue
            try:
                yield wire.frame_of(message.value() or b"")
            except wire.Broken as error:
                say("message", f"topic {topic}: {error}; left out")
    finally:
        consumer.close()
