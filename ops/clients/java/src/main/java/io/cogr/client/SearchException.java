package io.cogr.client;

/** OpenSearch can't be reached, refuses, or gives only a part of an answer. */
public final class SearchException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    SearchException(String message) {
        super(message);
    }

    SearchException(String message, Throwable cause) {
        super(message, cause);
    }
}
