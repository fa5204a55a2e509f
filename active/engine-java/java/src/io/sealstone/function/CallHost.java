package io.sealstone.function;

import java.nio.ByteBuffer;

/** The calls that {@link Osd} uses: of a device, or of local files. A negative result is an error number. */
interface CallHost {
    long read(int object, long offset, byte[] into, int start, int length);

    long write(int object, long offset, byte[] from, int start, int length);

    long append(int object, byte[] from, int start, int length);

    long punch(int object, long offset, long length);

    long length(int object);

    long getAttribute(int object, int page, int number, byte[] into);

    long setAttribute(int object, int page, int number, byte[] value);

    long list(int object, long after, long[] into);

    long create(int partition, long[] number);

    long remove(int object);

    long flush(int object);

    long clear(int object, long offset, long length);

    long createCollection(int collection, long[] number);

    long removeCollection(int collection, int force);

    long addMember(int collection, int object);

    long removeMember(int collection, int object);

    long isMember(int collection, int object);

    long result(byte[] data, int start, int length);

    long log(int level, byte[] text);

    long progress(long done, long total);

    boolean isCancelled();

    long clock();

    long openReader(int object, long offset, long length);

    /** Returns the next bytes of a reader, empty at its end; null with an error number in {@code error}. */
    ByteBuffer readNext(long stream, long[] error);

    long openWriter(int object, long offset);

    /** Writes at most {@link Osd#BUFFER_BYTES}. */
    long writeNext(long stream, byte[] from, int start, int length);

    long closeStream(long stream, boolean isWriter);
}
